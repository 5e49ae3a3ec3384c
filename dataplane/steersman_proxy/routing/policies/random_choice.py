"""``random``: any eligible engine, all equally likely."""

import random
from collections.abc import Callable

from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.policies.drawing import BITS, draw_admitted


class RandomChoice:
    """Uniform choice."""

    __slots__ = ("_bits", "_source")

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._bits = source.getrandbits

    def choose(self, eligible: Eligible) -> Engine:
        engines = eligible.engines
        return engines[self._bits(BITS) * len(engines) >> BITS]

    def choose_admitted(
        self, eligible: Eligible, admits: Callable[[Engine], bool]
    ) -> Engine | None:
        found = draw_admitted(eligible.engines, admits, count=1, source=self._source)
        return found[0] if found else None
