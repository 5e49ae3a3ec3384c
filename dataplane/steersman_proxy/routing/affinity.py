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
from collections.abc import Iterable, Iterator
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


def score(engine_digest: int, key_digest: int) -> int:
    """How much a key likes an engine: 64 bits that look independent for each pair."""
    # Two rounds of xor, shift and multiply. Hashing each pair with blake2b would cost four times
    # as much, and a new key is scored against every engine.
    mixed = engine_digest ^ key_digest
    mixed = (mixed ^ mixed >> 32) * _MULTIPLIER & _U64
    mixed = (mixed ^ mixed >> 32) * _MULTIPLIER & _U64
    return mixed ^ mixed >> 32


class Rendezvous:
    """The rankings of one set of engines."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self.engines = frozenset(engines)
        self._digests = [(digest(engine.id), engine) for engine in self.engines]
        # Keyed by the digest, not by the key: a key may be as long as a header may be.
        self._best = lru_cache(maxsize=REMEMBERED_KEYS)(self._best_of)

    def first(self, key: str) -> Engine | None:
        """The engine that ``key`` belongs to; ``None`` if there is no engine."""
        best = self._best(digest(key))
        return best[0] if best else None

    def ranked(self, key: str) -> Iterator[Engine]:
        """All engines, best first."""
        key_digest = digest(key)
        best = self._best(key_digest)
        yield from best
        if len(best) < len(self._digests):
            yield from nlargest_engines(self._scored(key_digest), len(self._digests))[len(best) :]

    def _best_of(self, key_digest: int) -> tuple[Engine, ...]:
        return tuple(nlargest_engines(self._scored(key_digest), REMEMBERED_RANKS))

    def _scored(self, key_digest: int) -> Iterator[tuple[int, str, Engine]]:
        for engine_digest, engine in self._digests:
            yield score(engine_digest, key_digest), engine.id, engine


def nlargest_engines(scored: Iterable[tuple[int, str, Engine]], count: int) -> list[Engine]:
    """The ``count`` best of ``scored``, best first. Ids are unique, so they settle equal scores."""
    return [engine for _, _, engine in nlargest(count, scored)]
