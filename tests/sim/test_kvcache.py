"""The KV pool: what is cached, pinned, evicted and refused."""

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from steersman_sim.engine.kvcache import KvPool, Lease, digests_of


def digests(*tokens: int, size: int = 2) -> list[bytes]:
    return digests_of(tokens, block_size=size)


def test_digest_chains_sha256_over_little_endian_words() -> None:
    first, second = digests(5, 6, 7, 8)
    words = b"".join(token.to_bytes(4, "little") for token in (5, 6))
    assert first == sha256(words).digest()
    words = b"".join(token.to_bytes(4, "little") for token in (7, 8))
    assert second == sha256(first + words).digest()


def test_only_whole_blocks_have_a_digest() -> None:
    assert len(digests(1, 2, 3)) == 1


@given(st.lists(st.integers(0, 100_000), max_size=40), st.integers(0, 6))
def test_digests_can_be_extended(tokens: list[int], known: int) -> None:
    whole = digests_of(tokens, block_size=4)
    assert digests_of(tokens, block_size=4, known=whole[:known]) == whole


def test_salt_separates_equal_prompts() -> None:
    assert digests_of([1, 2], block_size=2, salt="a") != digests_of([1, 2], block_size=2, salt="b")


def filled(pool: KvPool, *tokens: int, revision: int = 0) -> Lease:
    """Acquire blocks for tokens and make them cached."""
    chain = digests_of(tokens, block_size=pool.block_size)
    hits = pool.match(chain, limit=len(chain))
    lease = pool.acquire(chain, hits=hits, blocks=len(chain), revision=revision)
    assert lease is not None
    pool.store(lease, chain, revision=revision)
    return lease


def test_released_blocks_stay_cached() -> None:
    pool = KvPool(blocks=4, block_size=2)
    pool.release(filled(pool, 1, 2, 3, 4))
    assert pool.match(digests(1, 2, 3, 4, 5, 6), limit=9) == 2
    assert (pool.held, pool.evictable, pool.available) == (0, 2, 4)


def test_the_least_recently_used_leaf_goes_first() -> None:
    pool = KvPool(blocks=3, block_size=2)
    pool.release(filled(pool, 1, 2, 3, 4))
    pool.release(filled(pool, 9, 9))
    pool.release(filled(pool, 1, 2, 3, 4))
    pool.release(filled(pool, 7, 7))
    assert pool.match(digests(9, 9), limit=1) == 0
    assert pool.match(digests(1, 2, 3, 4), limit=2) == 2
    pool.release(filled(pool, 8, 8))
    assert pool.match(digests(1, 2, 3, 4), limit=2) == 1, "a leaf goes before its parent"


def test_a_pool_that_is_held_refuses_without_change() -> None:
    pool = KvPool(blocks=2, block_size=2)
    lease = filled(pool, 1, 2, 3, 4)
    assert pool.acquire([], hits=0, blocks=1, revision=0) is None
    assert not pool.grow(lease)
    assert not pool.clear()
    assert pool.held == 2


def test_blocks_of_older_weights_are_counted() -> None:
    pool = KvPool(blocks=4, block_size=2)
    pool.release(filled(pool, 1, 2, 3, 4, revision=0))
    lease = filled(pool, 1, 2, 3, 4, revision=1)
    assert lease.stale_blocks == 2


def test_equal_blocks_are_kept_once() -> None:
    pool = KvPool(blocks=4, block_size=2)
    chain = digests(1, 2)
    first = pool.acquire(chain, hits=0, blocks=1, revision=0)
    second = pool.acquire(chain, hits=0, blocks=1, revision=0)
    assert first is not None
    assert second is not None
    assert pool.held == 2
    pool.store(first, chain, revision=0)
    pool.store(second, chain, revision=0)
    assert pool.held == 1
    pool.release(first)
    assert pool.held == 1
    pool.release(second)
    assert (pool.held, pool.evictable) == (0, 1)


class Observed:
    def __init__(self) -> None:
        self.cached: dict[bytes, bytes | None] = {}

    def stored(self, digests: Sequence[bytes], *, parent: bytes | None) -> None:
        for digest in digests:
            assert digest not in self.cached
            assert parent is None or parent in self.cached
            self.cached[digest] = parent
            parent = digest

    def removed(self, digest: bytes) -> None:
        del self.cached[digest]
        assert digest not in self.cached.values(), "a parent went before its child"

    def cleared(self) -> None:
        self.cached.clear()


class PoolMachine(RuleBasedStateMachine):
    """The pool against what its observer was told, in any order of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = Observed()
        self.pool = KvPool(blocks=6, block_size=1, observer=self.observed)
        self.leases: list[tuple[Lease, list[bytes]]] = []

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def acquire(self, tokens: list[int]) -> None:
        chain = digests_of(tokens, block_size=1)
        hits = self.pool.match(chain, limit=len(chain) - 1)
        before = self.pool.held
        lease = self.pool.acquire(chain, hits=hits, blocks=len(chain), revision=0)
        if lease is None:
            assert self.pool.held == before
        else:
            self.leases.append((lease, chain))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        lease, chain = data.draw(st.sampled_from(self.leases))
        self.pool.store(lease, chain, revision=0)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        lease, _ = data.draw(st.sampled_from(self.leases))
        could = self.pool.available > 0
        assert self.pool.grow(lease) is could

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.leases) - 1))
        self.pool.release(self.leases.pop(index)[0])

    @rule()
    def clear(self) -> None:
        held = self.pool.held
        assert self.pool.clear() is (held == 0)

    @invariant()
    def blocks_add_up(self) -> None:
        pool = self.pool
        assert 0 <= pool.held <= pool.blocks
        assert pool.held + pool.available == pool.blocks
        assert pool.held + pool.evictable <= pool.blocks
        private = sum(lease.private for lease, _ in self.leases)
        shared = {digest for lease, _ in self.leases for digest in lease.shared}
        assert pool.held == private + len(shared)

    @invariant()
    def the_observer_knows_what_is_cached(self) -> None:
        for digest in self.observed.cached:
            assert self.pool.match([digest], limit=1) == 1
        shared = {digest for lease, _ in self.leases for digest in lease.shared}
        assert len(self.observed.cached) == len(shared) + self.pool.evictable


TestPool = PoolMachine.TestCase
