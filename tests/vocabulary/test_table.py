"""Rows, tables, clock and errors: what the parts of Steersman exchange."""

import json
from pathlib import Path

import msgspec
import pytest

from steersman import errors
from steersman.clock import Deadline, FakeClock, MonotonicClock
from steersman.engine import Control, EngineRow, Gate
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.tablefile.load import load_table_file
from steersman_proxy.tablefile.reader import TableReader

ROW = EngineRow(id="e0", url="http://127.0.0.1:1", pool="p")


@pytest.mark.parametrize(
    ("paused", "released", "control"),
    [
        (False, (), Control.ACTIVE),
        (True, (), Control.PAUSED),
        (False, ("weights",), Control.ASLEEP),
        (True, ("kv_cache",), Control.ASLEEP),
    ],
)
def test_control_is_derived_from_two_axes(
    paused: bool, released: tuple[str, ...], control: Control
) -> None:
    assert msgspec.structs.replace(ROW, paused=paused, released=released).control is control


def test_epochs_order_by_term_then_seq() -> None:
    assert Epoch(1, 9) < Epoch(2, 0) < Epoch(2, 1)


def test_a_table_survives_the_wire() -> None:
    table = Table(epoch=Epoch(1, 2), pools=(PoolRow(name="p", models=("m",)),), engines=(ROW,))

    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=Table)

    assert decoded == table


def test_a_reader_ignores_fields_of_a_later_release() -> None:
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(ROW))

    decoded = msgspec.convert([*encoded, "a new column"], EngineRow)

    assert decoded == ROW


def test_a_row_of_a_release_before_has_a_cache_that_was_never_cleared() -> None:
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(ROW))

    assert msgspec.convert(encoded[:-1], EngineRow) == ROW
    assert ROW.cache_generation == 0


@pytest.mark.parametrize(("key", "generation"), [("", 0), (", cacheGeneration: 3", 3)])
def test_a_table_file_may_leave_the_cache_generation_out(
    tmp_path: Path, key: str, generation: int
) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(f"pools: [{{name: p, engines: [{{url: 'http://e:1'{key}}}]}}]\n")

    (engine,) = TableReader().read(load_table_file(file)).engines

    assert engine.cache_generation == generation


def test_the_digest_differs_with_contents_and_not_with_the_epoch_or_the_order() -> None:
    other = msgspec.structs.replace(ROW, id="e1")
    closed = msgspec.structs.replace(ROW, gate=Gate(open=False, count=1))
    cleared = msgspec.structs.replace(ROW, cache_generation=1)
    table = Table(epoch=Epoch(0, 1), engines=(ROW, other))

    assert table.digest() == Table(epoch=Epoch(3, 4), engines=(other, ROW)).digest()
    assert table.digest() != Table(epoch=Epoch(0, 1), engines=(closed, other)).digest()
    assert table.digest() != Table(epoch=Epoch(0, 1), engines=(cleared, other)).digest()


def test_a_deadline_counts_on_the_injected_clock() -> None:
    clock = FakeClock()
    deadline = Deadline.after(clock, 2.0)
    clock.advance(1.5)

    assert (deadline.remaining(clock), deadline.passed(clock)) == (0.5, False)
    clock.advance(1.0)
    assert (deadline.remaining(clock), deadline.passed(clock)) == (0.0, True)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        FakeClock().advance(-1)
    clock = MonotonicClock()
    assert clock.now() <= clock.now()


def every_error() -> list[type[errors.SteersmanError]]:
    found: list[type[errors.SteersmanError]] = []
    todo = [errors.SteersmanError]
    while todo:
        found.append(kind := todo.pop())
        # Other tests make errors of their own.
        todo.extend(
            inner for inner in kind.__subclasses__() if inner.__module__.startswith("steersman")
        )
    return found


def test_each_error_has_a_code_of_its_own_a_meaning_and_a_remedy() -> None:
    kinds = every_error()
    branches = (errors.RequestError, errors.EditError)
    codes = [kind.code for kind in kinds if kind not in branches]

    assert len(codes) == len(set(codes))
    assert all(kind.remedy.endswith(".") and kind.__doc__ for kind in kinds)


def test_an_answered_error_is_what_openai_clients_parse() -> None:
    error = errors.NoAvailableEngine("nobody", reasons={"paused": 2})

    assert json.loads(error.body()) == {
        "error": {
            "type": "server_error",
            "code": "no_available_workers",
            "message": "nobody",
            "param": None,
            "reasons": {"paused": 2},
        }
    }
