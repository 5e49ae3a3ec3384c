"""Routing keys: every request of a key goes to the same engine, and every proxy names the same one.

Rendezvous hashing (Thaler and Ravishankar, 1998) ranks the engines for each key. The ranking is
over the *known* engines of a pool, not the eligible ones: while the first is closed the next
eligible one serves, and when it opens the key returns, without anybody having remembered anything.
An engine that joins takes an equal share of keys from each of the others; when one leaves, only its
own keys move.

The scores depend on engine ids and keys alone, so replicas and restarts agree. Python's ``hash`` is
seeded per process and would not do.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import nlargest

from steersman_proxy.routing.engines import Engine

REMEMBERED_KEYS = 4096
"""Rankings kept per pool and role; a conversation asks for its own again and again."""
REMEMBERED_RANKS = 8
"""Kept of each ranking. Further ones are computed when all of those are out."""

_U64 = 0xFFFF_FFFF_FFFF_FFFF
_MULTIPLIER = 0xD6E8_FEB8_6659_FD93
"""An odd constant whose multiplication, between shifts of 32, spreads every bit over the word."""


def digest(text: str) -> int:
    """64 bits of ``text``, the same everywhere and always."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def scores(engine_digests: Sequence[int], key_digest: int) -> list[int]:
    """How much a key likes each engine: 64 bits that look independent for each pair."""
    # Two rounds of xor, shift and multiply, in line: a new key is scored against every engine, and
    # hashing each pair with blake2b, or a call for each, would cost several times as much.
    found = []
    for engine_digest in engine_digests:
        mixed = engine_digest ^ key_digest
        mixed = (mixed ^ mixed >> 32) * _MULTIPLIER & _U64
        found.append((mixed ^ mixed >> 32) * _MULTIPLIER & _U64)
    return found


class Rendezvous:
    """The rankings of one set of engines."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self.engines = frozenset(engines)
        # Sorted, so that equal scores are settled alike everywhere.
        self._engines = sorted(self.engines, key=lambda engine: engine.id)
        self._digests = [digest(engine.id) for engine in self._engines]
        # Keyed by the digest, not by the key: a key may be as long as a header may be.
        self._best = lru_cache(maxsize=REMEMBERED_KEYS)(self._best_of)
        self._first = lru_cache(maxsize=REMEMBERED_KEYS)(self._first_of)

    def first(self, key: str) -> Engine | None:
        """The engine that ``key`` belongs to; ``None`` if there is no engine."""
        return self._first(digest(key))

    def ranked(self, key: str) -> Iterator[Engine]:
        """All engines, best first."""
        key_digest = digest(key)
        best = self._best(key_digest)
        yield from best
        if len(best) < len(self._engines):
            yield from self._ranking(key_digest, count=len(self._engines))[len(best) :]

    def _first_of(self, key_digest: int) -> Engine | None:
        """As the first of the ranking, for keys that come once; and many do."""
        found = scores(self._digests, key_digest)
        if not found:
            return None
        best = max(found)
        # Of equal ones the last, as in the ranking.
        return self._engines[len(found) - 1 - found[::-1].index(best)]

    def _best_of(self, key_digest: int) -> tuple[Engine, ...]:
        return tuple(self._ranking(key_digest, count=REMEMBERED_RANKS))

    def _ranking(self, key_digest: int, *, count: int) -> list[Engine]:
        scored = zip(scores(self._digests, key_digest), range(len(self._digests)), strict=True)
        return [self._engines[place] for _, place in nlargest(count, scored)]
