"""``round_robin``: each eligible engine in its turn."""

from collections.abc import Callable

from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine


class RoundRobin:
    """The turn is kept with the set of eligible engines.

    Kinds of requests do not disturb each other's turn: two policies that alternate over two engines
    would otherwise get one engine each.
    """

    __slots__ = ()

    def choose(self, eligible: Eligible) -> Engine:
        engines = eligible.engines
        cursor = eligible.cursor
        if cursor >= len(engines):
            cursor = 0
        eligible.cursor = cursor + 1
        return engines[cursor]

    def choose_admitted(
        self, eligible: Eligible, admits: Callable[[Engine], bool]
    ) -> Engine | None:
        for _ in eligible.engines:
            engine = self.choose(eligible)
            if admits(engine):
                return engine
        return None
