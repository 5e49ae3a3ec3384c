"""What became of each request of the soak, and what was wrong."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class End(StrEnum):
    """How a request ended, as its client saw it."""

    WHOLE = "whole"
    """With its own right answer."""
    REFUSED = "refused"
    """With an error of the proxy's own, in words."""
    BROKEN = "broken"
    """With a part of its own right answer, and no proper end."""
    UNANSWERED = "unanswered"
    """The connection ended before any answer."""
    LEFT_BEFORE = "left before the answer"
    """The client went away before it had a head of an answer."""
    LEFT_WITHIN = "left within the answer"


ANSWERED = frozenset({End.WHOLE, End.REFUSED, End.BROKEN, End.LEFT_WITHIN})
"""The proxy has surely seen the head of such a request. Of the others it may have."""


class Ledger:
    """Counts by model and end; texts of what was wrong; times at which failing is excused."""

    def __init__(self) -> None:
        self.ends = Counter[tuple[str, End]]()
        self.scenarios = Counter[str]()
        self.codes = Counter[tuple[str, str]]()
        """Errors of the proxy's, by model and code."""
        self.nonces = itertools.count(1)
        self.malformed = 0
        """Requests that are none; the proxy may count them or not."""
        self.wrong: list[str] = []
        self.excused = 0
        self._excuse: list[list[float]] = []

    def __str__(self) -> str:
        counts = (self.ends, self.codes, self.scenarios)
        lines = [", ".join(f"{key}: {n}" for key, n in sorted(one.items())) for one in counts]
        return "\n".join((*lines, f"excused: {self.excused}", "wrong:", *self.wrong))

    def note(self, model: str, end: End, *, code: str = "") -> None:
        self.ends[model, end] += 1
        if code:
            self.codes[model, code] += 1

    def count(self, model: str | None = None, *ends: End) -> int:
        return sum(
            number
            for (of, end), number in self.ends.items()
            if model in (None, of) and (not ends or end in ends)
        )

    @contextmanager
    def excusing(self, *, afterwards: float) -> Iterator[None]:
        """The proxy has no files left for a while, and some time to get over it."""
        span = [time.monotonic(), float("inf")]
        self._excuse.append(span)
        try:
            yield
        finally:
            span[1] = time.monotonic() + afterwards

    def may_fail(self, since: float) -> bool:
        """Whether a request that began at ``since``, and ends now, met such a moment."""
        now = time.monotonic()
        return any(since <= last and first <= now for first, last in self._excuse)
