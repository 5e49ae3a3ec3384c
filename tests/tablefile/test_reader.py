"""From one file to the next: epochs, gate counters and the newest version of a pool."""

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from steersman.documents import parse_document
from steersman.engine import Control, Gate, Trust
from steersman.table import Epoch, Table
from steersman.versions import VersionOrder
from steersman_proxy.tablefile import TableFile, TableReader, read_table_file
from steersman_proxy.tablefile.newest import counted_after


def file(*engines: str, fleet_max: str | None = None, pool: str = "p") -> TableFile:
    """A file with one pool and these engines; each text is ``ID key: value, ...``."""
    lines = [f"pools:\n- name: {pool}"]
    if fleet_max is not None:
        lines.append(f"  fleetMax: {fleet_max}")
    lines.append("  engines:" if engines else "  engines: []")
    for engine in engines:
        name, _, fields = engine.partition(" ")
        lines.append(f"  - {{id: {name}, url: 'http://{name}'{', ' if fields else ''}{fields}}}")
    return read_table_file(parse_document("t.yaml", "\n".join(lines).encode()))


def maxima(*files: TableFile) -> list[str | None]:
    """The fleet max of the first pool after each file."""
    reader = TableReader()
    tables = [reader.read(one) for one in files]
    return [table.pools[0].fleet_max if table.pools else None for table in tables]


# --- Epochs and gates ----------------------------------------------------------------------------


def test_the_epoch_goes_up_with_each_change_only() -> None:
    reader = TableReader()

    tables = [
        reader.read(one)
        for one in (file("a"), file("a"), file("a gate: closed"), file(), file(), file("a"))
    ]

    assert [table.epoch for table in tables] == [
        Epoch(0, seq) for seq in (1, 1, 2, 3, 3, 4)
    ]  # fmt: skip
    assert tables[1] is tables[0]
    assert reader.table is tables[-1]


def test_a_gate_counts_its_openings_and_closings() -> None:
    reader = TableReader()
    files = [
        file("a", "b gate: closed"),
        file("a gate: closed", "b gate: closed"),
        file("a gate: closed, control: paused", "b gate: closed, weightVersion: 3"),
        file("a control: paused", "b"),
        file("b", "a"),
        file("a", "b gate: closed", "c"),
    ]

    gates = [{row.id: row.gate for row in reader.read(one).engines} for one in files]

    assert [found["a"] for found in gates] == [
        Gate(True, 0), Gate(False, 1), Gate(False, 1), Gate(True, 2), Gate(True, 2), Gate(True, 2),
    ]  # fmt: skip
    assert [found["b"] for found in gates] == [
        Gate(False, 0), Gate(False, 0), Gate(False, 0), Gate(True, 1), Gate(True, 1), Gate(False, 2),
    ]  # fmt: skip
    assert gates[-1]["c"] == Gate(True, 0)


def test_an_engine_that_comes_back_or_moves_is_a_new_row() -> None:
    reader = TableReader()
    for one in (file("a"), file("a gate: closed"), file(), file("a gate: closed")):
        table = reader.read(one)
    assert table.engines[0].gate == Gate(False, 0)

    moved = read_table_file(
        parse_document("t.yaml", b"pools: [{name: p, engines: [{id: a, url: 'http://b'}]}]")
    )
    assert reader.read(moved).engines[0].gate == Gate(True, 0)


def test_a_prepared_step_changes_nothing_until_it_is_taken() -> None:
    reader = TableReader()
    first = reader.read(file("a weightVersion: 7"))

    step = reader.prepare(file("a weightVersion: 8, gate: closed"))
    assert reader.table is first

    again = reader.prepare(file("a weightVersion: 8, gate: closed"))
    assert again == step
    assert reader.commit(step) is step.table
    assert reader.table is step.table


# --- Fleet max -----------------------------------------------------------------------------------


def test_the_column_of_the_file_wins() -> None:
    assert maxima(
        file("a weightVersion: 7", fleet_max="9"),
        file("a weightVersion: 12", fleet_max="3"),
        file("a weightVersion: 12"),
    ) == ["9", "3", "12"]


def test_at_the_first_read_every_verified_version_counts() -> None:
    assert maxima(file("a weightVersion: 7", "b weightVersion: 8, gate: closed")) == ["8"]
    assert maxima(file("a weightVersion: 7", "b weightVersion: 8, control: asleep")) == ["8"]
    for out in ("trust: unsynced", "trust: uncertain", "trust: unknown", "failed: true"):
        assert maxima(file("a weightVersion: 7", f"b weightVersion: 8, {out}")) == ["7"]


def test_a_rolling_update() -> None:
    """Version 8 is the newest once the first engine opens with it, and not before."""
    v7 = "weightVersion: 7"
    v8 = "weightVersion: 8"

    assert maxima(
        file(f"e0 {v7}", f"e1 {v7}"),
        file(f"e0 {v7}, gate: closed", f"e1 {v7}"),
        file(f"e0 {v8}, gate: closed", f"e1 {v7}"),
        file(f"e0 {v8}, control: paused", f"e1 {v7}"),
        file(f"e0 {v8}", f"e1 {v7}"),
        file(f"e0 {v8}", f"e1 {v7}, gate: closed"),
        file(f"e0 {v8}", f"e1 {v8}"),
    ) == ["7", "7", "7", "7", "8", "8", "8"]


def test_a_counted_version_stays_through_pause_sleep_and_closing() -> None:
    quiet = [
        "weightVersion: 8, gate: closed", "weightVersion: 8, control: paused",
        "weightVersion: 8, control: asleep", "gate: closed", "trust: unsynced",
        "weightVersion: 7, trust: unknown",
    ]  # fmt: skip

    files = [file(f"a {fields}", "b weightVersion: 7") for fields in ("weightVersion: 8", *quiet)]

    assert maxima(*files) == ["8"] * len(files)


def test_the_max_goes_down_when_the_engines_that_had_it_are_gone_or_broken() -> None:
    b = "b weightVersion: 7"
    start = file("a weightVersion: 8", b)
    for lost in (
        file(b),
        file("a weightVersion: 8, failed: true", b),
        file("a weightVersion: 8, trust: uncertain", b),
        file("a weightVersion: 6", b),
    ):
        assert maxima(start, lost) == ["8", "7"]

    # Repaired, but not seen serving yet; then seen.
    assert maxima(
        start,
        file("a trust: uncertain", b),
        file("a weightVersion: 9, gate: closed", b),
        file("a weightVersion: 9", b),
    ) == ["8", "7", "7", "9"]


def test_an_engine_that_comes_back_open_with_a_smaller_version_takes_the_max_down() -> None:
    assert maxima(
        file("a weightVersion: 8"),
        file("a weightVersion: 1, gate: closed"),
        file("a weightVersion: 1"),
    ) == ["8", "8", "1"]


def test_an_engine_that_is_verified_to_have_no_version_stops_counting() -> None:
    assert maxima(file("a weightVersion: 8"), file("a trust: verified")) == ["8", None]


def test_a_new_engine_counts_once_it_is_seen_open() -> None:
    a = "a weightVersion: 7"
    assert maxima(
        file(a),
        file(a, "b weightVersion: 8, gate: closed"),
        file(a, "b weightVersion: 8, trust: unsynced"),
        file(a, "b weightVersion: 8"),
    ) == ["7", "7", "7", "8"]


def test_without_engines_there_is_no_max() -> None:
    assert maxima(file("a weightVersion: 8"), file(), file("a weightVersion: 3, gate: closed")) == [
        "8",
        None,
        None,
    ]


def test_while_the_column_is_there_the_reader_goes_on_counting() -> None:
    assert maxima(
        file("a weightVersion: 7", fleet_max="7"),
        file("a weightVersion: 8", fleet_max="7"),
        file("a weightVersion: 9, gate: closed"),
    ) == ["7", "7", "8"]


def test_pools_do_not_count_for_each_other() -> None:
    both = parse_document(
        "t.yaml",
        b"""
        pools:
        - {name: p, engines: [{url: "http://a", weightVersion: 7}]}
        - {name: q, ordinals: {old: 1, new: 2}, engines: [
            {url: "http://b", weightVersion: old}, {url: "http://c", weightVersion: new}]}
        - {name: r, engines: [{url: "http://d"}]}
        """,
    )

    found = TableReader().read(read_table_file(both))

    assert [pool.fleet_max for pool in found.pools] == ["7", "new", None]


# --- Against an oracle ---------------------------------------------------------------------------

_engine = st.fixed_dictionaries(
    {},
    optional={
        "weightVersion": st.sampled_from(["7", "8", "9", "10", "042", "step-1"]),
        "gate": st.sampled_from(["open", "closed"]),
        "control": st.sampled_from(["active", "paused", "asleep"]),
        "trust": st.sampled_from(["verified", "verified", "unsynced", "uncertain", "unknown"]),
        "failed": st.booleans(),
    },
)
_history = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), _engine, max_size=3), min_size=1, max_size=8
)


def _files(history: list[dict[str, dict[str, Any]]]) -> Iterator[TableFile]:
    for fleet in history:
        engines = [
            {"id": name, "url": f"http://{name}", **fields} for name, fields in fleet.items()
        ]
        yield TableFile.model_validate({"pools": [{"name": "p", "engines": engines}]})


def _naive_max(tables: list[Table]) -> str | None:
    """The rule told backwards: each engine's last moment of serving decides, as long as it was
    never away, failed or uncertain since."""
    versions = []
    for row in tables[-1].engines:
        for age, table in enumerate(reversed(tables), start=1):
            then = next((one for one in table.engines if one.id == row.id), None)
            if then is None or then.failed or then.trust is Trust.UNCERTAIN:
                break
            is_first = age == len(tables)
            serving = then.gate.open and then.control is Control.ACTIVE
            if then.trust is Trust.VERIFIED and (serving or is_first):
                if then.version is not None:
                    versions.append(then.version)
                break
    return VersionOrder().newest(versions)


@given(_history)
def test_the_reader_agrees_with_the_rule_told_backwards(
    history: list[dict[str, dict[str, Any]]],
) -> None:
    reader = TableReader()
    tables: list[Table] = []
    opened: dict[str, list[bool]] = {}
    for one in _files(history):
        table = reader.read(one)
        tables.append(table)
        assert table.pools[0].fleet_max == _naive_max(tables)
        present = {row.id: row for row in table.engines}
        for name in list(opened.keys() - present.keys()):
            del opened[name]
        for name, row in present.items():
            states = opened.setdefault(name, [])
            states.append(row.gate.open)
            changes = sum(before is not after for before, after in itertools.pairwise(states))
            assert row.gate.count == changes
    # A sequence number for each table that differs from the one before it.
    seqs = [table.epoch.seq for table in tables]
    assert seqs[0] == 1
    for before, after in itertools.pairwise(tables):
        changed = before.digest() != after.digest() or [row.id for row in before.engines] != [
            row.id for row in after.engines
        ]
        assert after.epoch.seq - before.epoch.seq == int(changed)


@given(_history)
def test_reading_a_file_twice_changes_nothing(history: list[dict[str, dict[str, Any]]]) -> None:
    reader = TableReader()
    for one in _files(history):
        assert reader.read(one) is reader.read(one)


def test_what_counts_is_a_function_of_what_counted_and_the_rows() -> None:
    table = TableReader().read(file("a weightVersion: 7, gate: closed"))

    assert counted_after(None, table.engines) == {("p", "a", "http://a"): "7"}
    assert counted_after({}, table.engines) == {}
    assert counted_after({("p", "a", "http://a"): "6"}, table.engines) == {
        ("p", "a", "http://a"): "6"
    }
