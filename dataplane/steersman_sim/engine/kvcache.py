"""The KV pool of one rank: blocks shared between running sequences and the prefix cache.

A block is *private* (held by one sequence, contents still growing), *cached and pinned* (known by
its hash, used by at least one sequence) or *cached and evictable*. Evictable blocks are given up
least recently used first, leaves before their parents, so a cached prefix is always whole.

A block's hash is that of SGLang 0.5.23: SHA-256 over the parent's digest and the token ids as
little-endian 32-bit words, chained. What a router is told of blocks is derived from these digests.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol


class CacheObserver(Protocol):
    """Told of every change of the cached blocks, in order (the source of KV events)."""

    def stored(self, digests: Sequence[bytes], *, parent: bytes | None) -> None:
        """These blocks became cached; the first follows ``parent``."""
        ...

    def removed(self, digest: bytes) -> None:
        """This block was evicted."""
        ...

    def cleared(self) -> None:
        """Nothing is cached any more."""
        ...


class Lease:
    """The blocks that one sequence holds: cached ones by digest, in order, then private ones."""

    __slots__ = ("private", "shared", "stale_blocks")

    def __init__(self, shared: list[bytes], private: int, *, stale_blocks: int) -> None:
        self.shared = shared
        self.private = private
        self.stale_blocks = stale_blocks
        """Cached blocks taken over that older weights had computed."""

    @property
    def blocks(self) -> int:
        """How many blocks are held."""
        return len(self.shared) + self.private


class _Block:
    __slots__ = ("refs", "revision")

    def __init__(self, revision: int) -> None:
        self.refs = 1
        self.revision = revision


def digests_of(
    tokens: Sequence[int], *, block_size: int, salt: str = "", known: Sequence[bytes] = ()
) -> list[bytes]:
    """The chained digests of all whole blocks of ``tokens``; ``known`` are the first of them."""
    digests = list(known)
    count = len(tokens) // block_size
    if len(digests) >= count:
        return digests[:count]
    first = len(digests)
    packed = array("I", [t & 0xFFFFFFFF for t in tokens[first * block_size : count * block_size]])
    raw = packed.tobytes()
    size = 4 * block_size
    parent = digests[-1] if digests else salt.encode()
    for start in range(0, len(raw), size):
        parent = sha256(parent + raw[start : start + size]).digest()
        digests.append(parent)
    return digests


class KvPool:
    """Block-granular LRU prefix cache that shares its pool with the running sequences."""

    def __init__(
        self, *, blocks: int, block_size: int, observer: CacheObserver | None = None
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._observer = observer
        self._cached: dict[bytes, _Block] = {}
        self._evictable: OrderedDict[bytes, None] = OrderedDict()
        self._private = 0

    @property
    def held(self) -> int:
        """Blocks that some sequence holds."""
        return self._private + len(self._cached) - len(self._evictable)

    @property
    def evictable(self) -> int:
        """Cached blocks that nobody holds."""
        return len(self._evictable)

    @property
    def available(self) -> int:
        """Blocks that could be handed out now, by eviction if need be."""
        return self.blocks - self.held

    def match(self, digests: Sequence[bytes], *, limit: int) -> int:
        """How many leading blocks are cached, at most ``limit``."""
        hits = 0
        cached = self._cached
        for digest in digests[:limit]:
            if digest not in cached:
                break
            hits += 1
        return hits

    def acquire(
        self, digests: Sequence[bytes], *, hits: int, blocks: int, revision: int
    ) -> Lease | None:
        """Pin the first ``hits`` cached blocks and hand out private ones up to ``blocks`` in all.

        ``None`` when the pool cannot, and nothing is changed then. ``revision`` is that of the
        weights in memory; hits computed by older ones are counted in the lease.
        """
        shared = list(digests[:hits])
        unpinned = sum(1 for digest in shared if digest in self._evictable)
        if blocks - hits > self.available - unpinned:
            return None
        stale = 0
        for digest in shared:
            block = self._cached[digest]
            block.refs += 1
            if block.revision != revision:
                stale += 1
            self._evictable.pop(digest, None)
        lease = Lease(shared, 0, stale_blocks=stale)
        self._take(lease, blocks - hits)
        return lease

    def grow(self, lease: Lease) -> bool:
        """Hand out one more private block; ``False`` when the pool is exhausted."""
        if self.available < 1:
            return False
        self._take(lease, 1)
        return True

    def _take(self, lease: Lease, count: int) -> None:
        lease.private += count
        self._private += count
        while self._private + len(self._cached) > self.blocks:
            digest, _ = self._evictable.popitem(last=False)
            del self._cached[digest]
            if self._observer is not None:
                self._observer.removed(digest)

    def store(self, lease: Lease, digests: Sequence[bytes], *, revision: int) -> None:
        """Make the leading blocks of a lease cached under ``digests`` (all of its whole blocks).

        A block that another sequence cached meanwhile is shared instead of kept twice.
        """
        first = len(lease.shared)
        fresh: list[bytes] = []
        parent = lease.shared[-1] if lease.shared else None
        for digest in digests[first : lease.blocks]:
            block = self._cached.get(digest)
            if block is None:
                self._cached[digest] = _Block(revision)
                fresh.append(digest)
            else:
                block.refs += 1
                self._evictable.pop(digest, None)
            lease.shared.append(digest)
            lease.private -= 1
            self._private -= 1
        if fresh and self._observer is not None:
            position = digests.index(fresh[0])
            self._observer.stored(fresh, parent=digests[position - 1] if position else parent)

    def release(self, lease: Lease) -> None:
        """Give a lease back. Its cached blocks stay, as most recently used."""
        self._private -= lease.private
        lease.private = 0
        for digest in reversed(lease.shared):
            block = self._cached[digest]
            block.refs -= 1
            if block.refs == 0:
                self._evictable[digest] = None
        lease.shared.clear()

    def clear(self) -> bool:
        """Forget everything cached; ``False``, changing nothing, while a sequence holds blocks."""
        if self.held:
            return False
        self._cached.clear()
        self._evictable.clear()
        if self._observer is not None:
            self._observer.cleared()
        return True
