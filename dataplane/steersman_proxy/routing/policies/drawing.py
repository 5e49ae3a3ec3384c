"""Random engines, cheaply.

``random.sample`` costs microseconds; here one draw of 60 bits gives two numbers. Multiplying 30
random bits by *n* and shifting is uniform to within *n* / 2^30.
"""

import random
from collections.abc import Callable, Sequence

from steersman_proxy.routing.engines import Engine

BITS = 30
MASK = (1 << BITS) - 1
_DRAWS = 12
"""How often to draw before looking at every engine."""


def draw_admitted(
    engines: Sequence[Engine],
    admits: Callable[[Engine], bool],
    *,
    count: int,
    source: random.Random,
) -> list[Engine]:
    """Up to ``count`` different engines that ``admits`` accepts, at random.

    Fewer only if there are fewer. While a good part of the engines is accepted, only a few of them
    are asked.
    """
    n = len(engines)
    found: list[Engine] = []
    if n > _DRAWS:
        for _ in range(_DRAWS):
            engine = engines[source.getrandbits(BITS) * n >> BITS]
            if engine not in found and admits(engine):
                found.append(engine)
                if len(found) == count:
                    return found
    accepted = [engine for engine in engines if admits(engine)]
    while len(accepted) > count:
        # Leave out one after the other: there are few, or this is rare.
        last = accepted.pop()
        at = source.getrandbits(BITS) * (len(accepted) + 1) >> BITS
        if at < len(accepted):
            accepted[at] = last
    return accepted
