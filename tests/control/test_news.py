"""What engines' answers say of their versions, on its way to the operator."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from steersman.clock import MonotonicClock
from steersman.control import SAID_VERSION, Observe, Watch
from steersman_proxy.control.news import AGAIN, BATCH, PAUSE
from steersman_proxy.routing.engines import Engine
from tests.control.operators import FakeOperator, Stage
from tests.control.support import Journal, World, fleet, row, table


def following(*names: str) -> tuple[Stage, FakeOperator]:
    """A proxy that follows an operator, with a table of these engines at version 7."""
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(*(row(name) for name in names)))
    return stage, operator


def engine(stage: Stage, name: str) -> Engine:
    return next(one for one in stage.fleet.engines() if one.id == name)


def says(stage: Stage, name: str, version: str | None) -> None:
    """An engine has named a version in an answer; ``None`` is ``default``."""
    stage.fleet.observe(engine(stage, name), version, seen_default=version is None)


def told(operator: FakeOperator) -> list[tuple[str, str]]:
    found = operator.got(Observe)
    assert {one.kind for one in found} <= {SAID_VERSION}
    return [(one.engine, one.sample) for one in found]


def test_another_version_than_the_tables_is_told_at_once_and_once() -> None:
    stage, operator = following("a", "b")

    says(stage, "a", "8")
    assert told(operator) == [], "not within the answer"
    stage.pass_time(0.0)
    assert told(operator) == [("a", "8")]
    for _ in range(10):
        says(stage, "a", "8")
        says(stage, "b", "7")
        stage.pass_time(1.0)

    assert told(operator) == [("a", "8")]


def test_an_engine_that_has_lost_its_version_is_told_without_one() -> None:
    stage, operator = following("a")

    says(stage, "a", "7")
    says(stage, "a", None)
    stage.pass_time(0.0)

    assert told(operator) == [("a", "")]


def test_of_what_an_engine_says_in_one_turn_the_last_is_told() -> None:
    stage, operator = following("a")
    for version in ("8", "9", "10"):
        says(stage, "a", version)
    stage.pass_time(5.0)

    assert told(operator) == [("a", "10")]


def test_what_the_table_says_by_then_is_not_told() -> None:
    stage, operator = following("a", "b", "c")
    says(stage, "a", "8")
    says(stage, "b", "8")
    says(stage, "c", "8")
    says(stage, "c", "7")

    operator.sends(table(row("a", version="8"), seq=2))
    stage.pass_time(5.0)

    assert told(operator) == []


def test_an_answer_that_contradicts_the_next_table_too_is_told_again() -> None:
    stage, operator = following("a")
    says(stage, "a", "8")
    stage.pass_time(0.0)
    for seq in (2, 3):
        operator.sends(table(row("a"), seq=seq))
        says(stage, "a", "8")

    stage.pass_time(AGAIN - 0.01)
    assert told(operator) == [("a", "8")]
    stage.pass_time(0.02)
    assert told(operator) == [("a", "8")] * 2


def test_what_the_socket_does_not_take_is_told_later() -> None:
    stage, operator = following("a")
    operator.takes = False
    says(stage, "a", "8")
    stage.pass_time(3.0)

    operator.takes = True
    stage.pass_time(PAUSE)

    assert told(operator) == [("a", "8")]


def test_a_leader_is_told_once_its_own_table_was_contradicted() -> None:
    stage, old = following("a")
    old.disconnect()
    says(stage, "a", "8")
    stage.pass_time(1.0)
    new = stage.operator("new")
    new.join(term=2)
    stage.pass_time(1.0)
    assert told(new) == [], "it may know already"

    new.sends(table(row("a"), term=2))
    stage.pass_time(1.0)
    assert told(new) == []
    says(stage, "a", "8")
    stage.pass_time(1.0)

    assert told(new) == [("a", "8")]
    assert told(old) == []


def test_a_fleet_that_was_changed_behind_the_operators_back_is_told_a_few_at_a_time() -> None:
    names = [f"e{number}" for number in range(100)]
    stage, operator = following(*names)
    for _ in range(20):
        for name in names:
            says(stage, name, "8")

    stage.pass_time(0.0)
    assert told(operator) == [(name, "8") for name in names[:BATCH]]
    operator.says(Watch(()))  # that it hears more often makes it no faster
    stage.pass_time(1.0 - 0.01)
    assert len(told(operator)) == BATCH / PAUSE
    stage.pass_time(100 / BATCH * PAUSE)
    assert told(operator) == [(name, "8") for name in names]


def test_an_engine_at_a_new_address_is_another_one() -> None:
    stage, operator = following("a")
    says(stage, "a", "8")
    moved = msgspec.structs.replace(row("a"), url="http://other:1")
    operator.sends(table(moved, seq=2))
    stage.pass_time(5.0)

    assert told(operator) == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("says"), st.sampled_from("abcdefgh"), st.sampled_from(["7", "8", None])),
        st.tuples(st.just("waits"), st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        st.tuples(
            st.just("table"), st.sampled_from(["7", "8"]), st.sets(st.sampled_from("abcdefgh"))
        ),
        st.tuples(st.just("takes"), st.booleans()),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_happens_little_is_said_and_nothing_is_forgotten(
    happens: list[tuple[object, ...]],
) -> None:
    stage, operator = following(*"abcdefgh")
    sent: list[tuple[float, str]] = []
    claimed: dict[str, set[str]] = {name: set() for name in "abcdefgh"}
    seq = 1

    def note() -> None:
        for one in operator.got(Observe)[len(sent) :]:
            sent.append((stage.clock.now(), one.engine))
            assert one.sample in claimed[one.engine], "nobody said so"

    def wait(seconds: float) -> None:
        end = stage.clock.now() + seconds
        while (due := stage.follower.next_due) is not None and due <= end:
            stage.clock.advance(max(0.0, due - stage.clock.now()))
            stage.follower.tick()
            note()
        stage.clock.advance(end - stage.clock.now())

    for what, *details in happens:
        match what, details:
            case "says", [str(name), version]:
                if any(one.id == name for one in stage.fleet.engines()):
                    claimed[name].add(str(version or ""))
                    says(stage, name, version)  # type: ignore[arg-type]
            case "waits", [float(seconds)]:
                wait(seconds)
            case "table", [str(version), set(names)]:
                seq += 1
                rows = (row(name, version=version) for name in sorted(names))
                operator.sends(table(*rows, seq=seq), removed_ok=True)
            case "takes", [bool(takes)]:
                operator.takes = takes
    operator.takes = True
    wait(8 * AGAIN)

    last = {one.engine: one.sample for one in operator.got(Observe)}
    for one in stage.fleet.engines():
        if one.overlaid:
            assert last[one.id] == (one.version or "")
    for start, _ in sent:
        within = Counter(name for at, name in sent if start <= at < start + 1.0)
        assert within.total() <= BATCH * (1 / PAUSE)
        assert max(within.values()) == 1
    assert stage.follower.next_due is None or stage.follower.next_due > stage.clock.now()


async def test_over_a_real_socket(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    made = fleet(MonotonicClock())
    await place.client(*server.endpoints, made=made)
    server.publish(table(row("a")), urgent=True)
    await journal.until("acked", "pod", "1.1")

    (one,) = made.engines()
    made.observe(one, "8")
    await journal.until("seen", "pod", "a", "8")
    made.observe(one, None, seen_default=True)
    await journal.until("seen", "pod", "a", None)

    assert len(journal.of("seen")) == 2
    assert journal.of("lost") == []
