"""Durable records when many write at once and the disk fails: what was acknowledged is there."""

import asyncio
import errno
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.clock import FakeClock
from steersman_operator.fleet.commands import Store
from steersman_operator.fleet.events import Event, Stored
from steersman_operator.fleet.facts import Durable, Facts
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore, StoreConflict
from steersman_operator.shell.fleet import FleetShell


def record(engine: str, mark: int = 0, *, term: int = 1) -> Durable:
    return Durable(engine=engine, facts=Facts(), term=term, deadline=float(mark))


def opened(folder: Path) -> FileStore:
    store = FileStore(folder / "state.json")
    store.open()
    return store


def kept(folder: Path) -> dict[str, float]:
    """What the next operator finds."""
    records = FileStore(folder / "state.json").open()[1]
    return {one.engine: one.deadline for one in records}


class Disk:
    """A disk that can be made to fail, and that counts."""

    def __init__(self) -> None:
        self.flushes = 0
        self.fault: str | None = None
        """Where it fails: `write`, `flush`, `name` (before the file has it) or `folder` (after)."""
        self.short = False
        """Whether a write takes only a part."""
        self.held = threading.Event()
        """Cleared, flushes wait."""
        self.held.set()
        self.asked = threading.Event()
        """Set when a flush waits."""
        self._write, self._fsync, self._replace = os.write, os.fsync, os.replace

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.fault == "write":
            self._write(descriptor, data[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data[:7] if self.short else data)

    def fsync(self, descriptor: int) -> None:
        self.asked.set()
        assert self.held.wait(10)
        self.flushes += 1
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if self.fault == ("folder" if folder else "flush"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)

    def replace(self, draft: Path, path: Path) -> None:
        if self.fault == "name":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self._replace(draft, path)


@contextmanager
def replaced_disk() -> Iterator[Disk]:
    disk = Disk()
    with (
        mock.patch.object(os, "write", disk.write),
        mock.patch.object(os, "fsync", disk.fsync),
        mock.patch.object(os, "replace", disk.replace),
    ):
        yield disk


@pytest.fixture(name="disk")
def _disk() -> Iterator[Disk]:
    with replaced_disk() as disk:
        yield disk


# --- one flush for many ---------------------------------------------------------------------------


async def test_writes_that_wait_together_cost_a_handful_of_flushes(
    tmp_path: Path, disk: Disk
) -> None:
    store = opened(tmp_path)
    disk.flushes = 0

    await asyncio.gather(*(store.write(record(f"e{i}", i)) for i in range(512)))

    assert disk.flushes <= 8
    assert kept(tmp_path) == {f"e{i}": i for i in range(512)}


async def test_what_comes_during_a_flush_is_not_taken_for_flushed(
    tmp_path: Path, disk: Disk
) -> None:
    store = opened(tmp_path)
    disk.asked.clear()
    disk.held.clear()
    first = asyncio.ensure_future(store.write(record("a", 1)))
    await asyncio.to_thread(disk.asked.wait)
    second = asyncio.ensure_future(store.write(record("a", 2)))
    third = asyncio.ensure_future(store.forget("b"))
    await asyncio.sleep(0)
    assert not first.done() and not second.done()
    disk.held.set()

    await asyncio.gather(first, second, third)
    assert kept(tmp_path) == {"a": 2}


async def test_a_later_record_is_never_overtaken_by_an_earlier(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for turn in range(20):
        marks = [turn * 10 + i for i in range(10)]
        await asyncio.gather(*(store.write(record("a", mark)) for mark in marks))
        assert kept_now(store) == marks[-1]


def kept_now(store: FileStore) -> float:
    contents = store._read()
    return contents.records["a"].deadline


async def test_a_writer_that_leaves_takes_nobody_with_it(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path)
    disk.asked.clear()
    disk.held.clear()
    tasks = [asyncio.ensure_future(store.write(record(name, 1))) for name in "abc"]
    await asyncio.to_thread(disk.asked.wait)
    late = [asyncio.ensure_future(store.write(record(name, 2))) for name in "abc"]
    await asyncio.sleep(0)
    tasks[0].cancel()
    late[1].cancel()
    disk.held.set()

    await asyncio.gather(*tasks[1:], late[0], late[2])
    # The first flush was under way, the second writer of b left before hers.
    assert kept(tmp_path) == {"a": 2, "b": 1, "c": 2}


async def test_generations_are_counted_in_one_thread_while_records_are_written_in_another(
    tmp_path: Path, disk: Disk
) -> None:
    disk.short = True
    store = opened(tmp_path)

    def count() -> list[int]:
        return [store.generation("RolloutEngine/p", str(i)) for i in range(40)]

    numbers, *_ = await asyncio.gather(
        asyncio.to_thread(count), *(store.write(record(f"e{i}", i)) for i in range(40))
    )

    assert numbers == list(range(1, 41))
    again = opened(tmp_path)
    assert again.generation("RolloutEngine/p", "39") == 40
    assert kept(tmp_path) == {f"e{i}": i for i in range(40)}


# --- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["write", "flush", "name", "folder"])
async def test_a_failed_write_is_told_to_everybody_it_was_for_and_made_by_nobody_later(
    tmp_path: Path, disk: Disk, fault: str
) -> None:
    store = opened(tmp_path)
    await store.write(record("a", 1))
    disk.fault = fault

    outcomes = await asyncio.gather(
        store.write(record("a", 2)), store.write(record("b", 2)), return_exceptions=True
    )
    assert all(isinstance(one, OSError) for one in outcomes)
    assert not [file for file in tmp_path.iterdir() if file.name != "state.json"]

    disk.fault = None
    await store.write(record("c", 3))
    assert kept(tmp_path) == {"a": 1, "c": 3}


async def test_a_record_that_is_there_already_is_written_again_after_a_failure(
    tmp_path: Path, disk: Disk
) -> None:
    """Whether the failed one is on disk nobody knows, so that the one before may not be there."""
    store = opened(tmp_path)
    await store.write(record("a", 1))
    disk.fault = "folder"
    with pytest.raises(OSError, match="Input/output"):
        await store.write(record("a", 2))

    disk.fault = None
    await store.write(record("a", 1))
    assert kept(tmp_path) == {"a": 1}


async def test_a_generation_on_a_full_disk_counts_and_is_written_with_the_next_record(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    disk.fault = "write"
    assert store.generation("RolloutEngine/p", "x") == 1
    assert "No space left" in caplog.text
    disk.fault = None
    await store.write(record("a"))

    assert opened(tmp_path).generation("RolloutEngine/p", "x") == 1


@pytest.mark.parametrize("fault", ["write", "flush", "name"])
def test_a_later_term_that_cannot_be_written_is_not_begun(
    tmp_path: Path, disk: Disk, fault: str
) -> None:
    store = opened(tmp_path)
    disk.fault = fault
    with pytest.raises(OSError, match=r"left|error|Read-only"):
        store.advance(5)

    disk.fault = None
    assert store.advance(5)[0] == 6


@pytest.mark.parametrize("fault", ["write", "flush", "name", "folder"])
async def test_the_core_is_told_that_a_record_was_not_written(
    tmp_path: Path, disk: Disk, fault: str
) -> None:
    told: list[Event] = []

    class Shell(FleetShell):
        def feed(self, event: Event) -> None:
            told.append(event)

    store = opened(tmp_path)
    shell = Shell(clock=FakeClock(), engines=mock.Mock(), store=store, timing=Timing())
    disk.fault = fault
    shell._carry_out(Store(number=4, record=record("a")))
    await asyncio.gather(*shell._tasks)

    (stored,) = told
    assert isinstance(stored, Stored)
    assert (stored.engine, stored.number, stored.ok) == ("a", 4, False)
    assert stored.detail


# --- anything at once -----------------------------------------------------------------------------

FAULTS = st.sampled_from((None, None, None, "write", "flush", "name", "folder"))
CHANGES = st.tuples(st.sampled_from("abc"), st.booleans())
BATCH = st.tuples(FAULTS, st.booleans(), st.lists(CHANGES, max_size=6), st.integers(0, 2))


@settings(max_examples=60)
@given(batches=st.lists(BATCH, min_size=1, max_size=8))
def test_what_was_acknowledged_is_there_for_the_next_operator(
    batches: list[tuple[str | None, bool, list[tuple[str, bool]], int]],
) -> None:
    """For each engine: the last change that was acknowledged, or one that was asked for later."""
    with tempfile.TemporaryDirectory() as name, replaced_disk() as disk:
        asyncio.run(_changes(Path(name), disk, batches))


async def _changes(
    folder: Path,
    disk: Disk,
    batches: list[tuple[str | None, bool, list[tuple[str, bool]], int]],
) -> None:
    store = opened(folder)
    asked: dict[str, list[tuple[float | None, bool]]] = {name: [(None, True)] for name in "abc"}
    marks = iter(range(1, 1000))
    for fault, short, changes, turns in batches:
        disk.fault, disk.short = fault, short
        pending = []
        for name, forget in changes:
            mark = next(marks)
            work = store.forget(name) if forget else store.write(record(name, mark))
            pending.append((name, None if forget else float(mark), asyncio.ensure_future(work)))
            for _ in range(turns):
                await asyncio.sleep(0)
        generation = asyncio.ensure_future(
            asyncio.to_thread(store.generation, "p", str(next(marks)))
        )
        outcomes = await asyncio.gather(*(one for *_, one in pending), return_exceptions=True)
        await generation
        for (name, value, _), outcome in zip(pending, outcomes, strict=True):
            assert outcome is None or isinstance(outcome, OSError)
            asked[name].append((value, outcome is None))
        # Only then the file may be another one than the store believes.
        _look(folder, asked, in_doubt=fault == "folder")


def _look(
    folder: Path, asked: dict[str, list[tuple[float | None, bool]]], *, in_doubt: bool
) -> None:
    found = {
        one.engine: one.deadline
        for one in FileStore(folder / "state.json")._read().records.values()
    }
    for name, changes in asked.items():
        last = max(i for i, (_, acknowledged) in enumerate(changes) if acknowledged)
        possible = {value for value, _ in changes[last:]} if in_doubt else {changes[last][0]}
        assert found.get(name) in possible, (name, changes)


async def test_two_operators_that_write_at_once_are_not_mixed(tmp_path: Path) -> None:
    old, new = opened(tmp_path), opened(tmp_path)
    outcomes = await asyncio.gather(
        *(old.write(record(f"old{i}", term=1)) for i in range(20)),
        *(new.write(record(f"new{i}", term=2)) for i in range(20)),
        return_exceptions=True,
    )
    assert all(isinstance(one, StoreConflict) for one in outcomes[:20])
    assert kept(tmp_path).keys() == {f"new{i}" for i in range(20)}
