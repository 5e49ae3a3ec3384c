"""Durable records in a file: what survives the operator, and who may write."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from steersman.engine import Control
from steersman_operator.fleet.facts import CallKind, Durable, Facts
from steersman_operator.shell.file_store import FileStore, StoreConflict, StoreUnreadable

ASLEEP = Durable(
    engine="p/e0",
    facts=Facts(boot_id="b", paused=True, released=("kv_cache", "weights")),
    goal=Control.ASLEEP,
    term=1,
)


def opened(path: Path) -> FileStore:
    store = FileStore(path)
    store.open()
    return store


async def test_what_was_written_is_there_for_the_next_operator_in_a_later_term(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    store = FileStore(path)
    assert store.open() == (1, ())
    await store.write(ASLEEP)

    assert FileStore(path).open() == (2, (ASLEEP,))


async def test_an_intent_survives_with_its_call(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    intent = Durable(engine="p/e0", facts=Facts(), call=CallKind.SLEEP, goal=Control.ASLEEP, term=1)
    await opened(path).write(intent)

    assert FileStore(path).open()[1] == (intent,)


async def test_who_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    old = opened(path)
    await old.write(ASLEEP)
    new = opened(path)

    with pytest.raises(StoreConflict):
        await old.write(ASLEEP)
    with pytest.raises(StoreConflict):
        await old.forget("p/e0")
    await new.forget("p/e0")
    assert FileStore(path).open()[1] == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"term": "x"}'])
def test_a_damaged_file_is_told_and_not_taken_for_an_empty_one(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)

    with pytest.raises(StoreUnreadable, match=r"state\.json"):
        FileStore(path).open()
    assert path.read_bytes() == content


def test_a_generation_goes_up_with_each_other_spec_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = opened(path)

    assert [store.generation("p", spec) for spec in ("a", "a", "b", "a")] == [1, 1, 2, 3]
    assert opened(path).generation("p", "a") == 3


def test_a_resource_was_created_when_it_was_first_asked_for(tmp_path: Path) -> None:
    path, times = tmp_path / "state.json", iter((10.5, 20.0))
    store = FileStore(path, wall=lambda: next(times))
    store.open()

    assert store.generation("RolloutEngine/a", "1") == 1
    assert store.created("RolloutEngine/b") == 20.0
    assert store.created("RolloutEngine/a") == 10.5
    again = opened(path)
    assert (again.created("RolloutEngine/a"), again.created("RolloutEngine/b")) == (10.5, 20.0)


def test_who_has_what_survives_and_is_written_only_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = opened(path)
    store.hold({"model m": "a", "default": "a"})
    written = path.stat().st_ino
    store.hold({"default": "a", "model m": "a"})
    assert path.stat().st_ino == written
    store.hold({"model m": "b"})
    store.advance(5)

    assert store.holders() == opened(path).holders() == {"model m": "b"}


def test_a_file_of_before_has_no_holders(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b'{"version": 1, "term": 3, "created": {"RolloutEngine/a": 5.0}}')

    assert opened(path).holders() == {}


def test_a_later_term_is_later_than_ours_and_than_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = opened(path)

    assert store.advance(7) == (8, ())
    assert store.advance(3) == (9, ())
    assert FileStore(path).open()[0] == 10


async def test_a_later_term_keeps_the_records_and_refuses_those_of_the_term_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    store = opened(path)
    await store.write(ASLEEP)
    late = msgspec.structs.replace(ASLEEP, engine="p/e1")

    waiting = asyncio.ensure_future(store.write(late))
    assert store.advance(4) == (5, (ASLEEP,))
    with pytest.raises(StoreConflict):
        await waiting
    await store.write(msgspec.structs.replace(late, term=5))

    assert len(FileStore(path).open()[1]) == 2


async def test_who_was_taken_over_begins_no_later_term(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    old = opened(path)
    new = opened(path)

    with pytest.raises(StoreConflict):
        old.advance(9)
    await new.write(msgspec.structs.replace(ASLEEP, term=2))


def test_drafts_that_a_crash_has_left_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    opened(path)
    (tmp_path / ".state.json.xyz.new").write_bytes(b"half")

    opened(path)
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


async def test_a_file_that_was_removed_is_written_again_with_everything(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    store.open()
    await store.write(ASLEEP)
    (tmp_path / "state.json").unlink()
    await store.write(msgspec.structs.replace(ASLEEP, engine="p/e1"))

    term, durable = FileStore(tmp_path / "state.json").open()
    assert term == 2
    assert {one.engine for one in durable} == {"p/e0", "p/e1"}
