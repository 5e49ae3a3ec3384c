"""Durable records in a file: what survives the operator, and who may write."""

from pathlib import Path

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
    intent = Durable(
        engine="p/e0", facts=Facts(), call=CallKind.SLEEP, goal=Control.ASLEEP, deadline=60.0
    )
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
