"""Where the choices of an example come from: a seed, or Hypothesis.

All choices are made of one: a number below ``n``. A seed is fast (the bulk of a run), Hypothesis
shrinks by itself. Low numbers are the plain choices, so that Hypothesis shrinks towards those.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Source:
    """Choices. ``below(n)`` gives a number from 0 to ``n - 1``."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True in so many cases of a hundred."""
        return self.below(100) >= 100 - percent

    def times(self, most: int) -> range:
        """Zero to ``most`` times."""
        return range(self.below(most + 1))

    def sample(self, options: Sequence[T], most: int) -> list[T]:
        """At most so many of the options, repetitions among them."""
        return [self.choice(options) for _ in self.times(most)]

    def cuts(self, data: bytes, most: int, places: Sequence[int] = ()) -> tuple[bytes, ...]:
        """``data`` in at most ``most + 1`` pieces, often cut within or next to a line break."""
        found = set(places)
        for _ in self.times(most):
            at = self.below(len(data) + 1)
            if self.chance(50):
                line = data.find(b"\r\n", at)
                at = at if line < 0 else line + self.below(3)
            found.add(at)
        ends = sorted(at for at in found if 0 < at < len(data))
        return tuple(data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True))


def of_seed(seed: int) -> Source:
    """The choices of a seed."""
    return Source(random.Random(seed).randrange)


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """A strategy of sources whose choices Hypothesis makes."""
    return Source(lambda n: draw(st.integers(0, n - 1)))
