"""``power_of_two``: of two random engines the one with fewer requests in flight."""

import random
from collections.abc import Callable

from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.policies.drawing import BITS, MASK, draw_admitted


class PowerOfTwo:
    """Two different engines are drawn. At equal load the first drawn wins, which favours nobody."""

    __slots__ = ("_bits", "_source")

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._bits = source.getrandbits

    def choose(self, eligible: Eligible) -> Engine:
        engines = eligible.engines
        n = len(engines)
        if n == 1:
            return engines[0]
        bits = self._bits(2 * BITS)
        i = (bits & MASK) * n >> BITS
        # The second is drawn from the others: positions from `i` on stand for the one after.
        j = (bits >> BITS) * (n - 1) >> BITS
        first = engines[i]
        second = engines[j if j < i else j + 1]
        return second if second.load.requests < first.load.requests else first

    def choose_admitted(
        self, eligible: Eligible, admits: Callable[[Engine], bool]
    ) -> Engine | None:
        found = draw_admitted(eligible.engines, admits, count=2, source=self._source)
        return min(found, key=_in_flight, default=None)


def _in_flight(engine: Engine) -> int:
    return engine.load.requests
