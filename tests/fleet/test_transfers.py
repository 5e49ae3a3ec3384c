"""Weights that a trainer transfers: the engine waits for it, and for its word."""

from steersman.engine import Control, Trust
from steersman_operator.fleet.events import Published
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench, Truth
from tests.fleet.test_refits import DISK, all_loaded, loaded

EXTERNAL = Weights(version="2", source=SourceKind.EXTERNAL)
COMMIT = [CallKind.PAUSE, CallKind.LABEL, CallKind.RESUME]


def published(bench: Bench, version: str = "2") -> None:
    bench.do(Published(now=bench.now, pool="pool", version=version))


def waiting(bench: Bench) -> bool:
    return all(
        engine.op is not None and engine.op.phase is Phase.AWAITING
        for engine in bench.state.engines.values()
    )


def test_the_trainer_transfers_and_commits() -> None:
    bench = Bench("abc")
    bench.want(weights=EXTERNAL)
    assert not any(bench.row(name).gate.open for name in "abc"), "all at once, as told"
    assert bench.run(30, lambda: waiting(bench))
    assert bench.notes().count("ReadyForWeights") == 3
    published(bench)
    assert bench.run(30, lambda: all_loaded(bench))
    assert all(bench.called(name) == COMMIT for name in "abc")
    assert bench.fleet_max() == "2"


def test_the_version_that_an_engine_shows_is_a_commit() -> None:
    bench = Bench("ab")
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    bench.run(5)
    bench.truths["a"].version = "2"
    assert bench.run(30, lambda: loaded(bench, "a"))
    assert bench.op("b").phase is Phase.AWAITING


def test_a_version_that_was_shown_before_the_turn_is_no_commit() -> None:
    """Somebody has named the weights, or an earlier transfer was superseded and has come to its end."""
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    bench.want(weights=Weights(version="3", source=SourceKind.EXTERNAL))
    bench.truths["a"].version = "2"
    bench.want(weights=EXTERNAL)
    bench.run(20)
    assert waiting(bench)
    published(bench)
    assert bench.run(30, lambda: loaded(bench))


def test_a_trainer_that_lets_the_engine_go_on_by_itself() -> None:
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    bench.run(5)
    bench.truths["a"].version = "2"
    bench.truths["a"].paused = False
    assert bench.run(30, lambda: loaded(bench))
    assert bench.called() == [CallKind.PAUSE, CallKind.LABEL]


def test_a_commit_of_another_version_is_none() -> None:
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    published(bench, "3")
    bench.run(10)
    assert waiting(bench)


def test_a_trainer_that_never_commits_leaves_the_engine_uncertain_and_closed() -> None:
    bench = Bench(trainer_timeout=60.0)
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    assert bench.row().trust is not Trust.UNCERTAIN, "what it had counts on"
    assert bench.run(70, lambda: bench.row().trust is Trust.UNCERTAIN)
    bench.run(30)
    assert not bench.row().gate.open
    assert bench.engine().op is None
    assert CallKind.RESUME not in bench.called()
    assert "not committed" in bench.engine().problem
    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench)), "a whole load heals it"


def test_a_transfer_that_is_called_off_leaves_the_engine_uncertain() -> None:
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    bench.want(weights=None)
    bench.run(30)
    assert bench.row().trust is Trust.UNCERTAIN
    assert not bench.row().gate.open


def test_a_commit_is_not_forgotten_when_the_goal_changes() -> None:
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    published(bench)
    assert bench.op().phase is Phase.CLAIMING
    bench.want(Control.PAUSED)
    assert bench.run(30, lambda: bench.row().version == "2" and bench.settled(Control.PAUSED))
    assert bench.notes().count("ReadyForWeights") == 1


def test_a_newer_transfer_takes_over() -> None:
    bench = Bench()
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    bench.want(weights=Weights(version="3", source=SourceKind.EXTERNAL))
    bench.run(5)
    published(bench, "2")
    bench.run(5)
    assert waiting(bench)
    published(bench, "3")
    assert bench.run(30, lambda: loaded(bench, "a", "3"))
    assert bench.called() == COMMIT


def test_a_trainer_wakes_up_to_its_room() -> None:
    """The KV memory comes back after the transfer, which may need the room."""
    bench = Bench(truths={"a": Truth(backup=False)})
    bench.want(Control.ASLEEP)
    assert bench.run(60, lambda: bench.settled(Control.ASLEEP))
    bench.want(Control.ACTIVE, weights=EXTERNAL)
    assert bench.run(60, lambda: waiting(bench))
    assert bench.engine().facts.released == ("kv_cache",)
    published(bench)
    assert bench.run(60, lambda: loaded(bench))


def test_the_next_operator_waits_for_the_trainer_again() -> None:
    bench = Bench("ab")
    bench.want(weights=EXTERNAL)
    assert bench.run(30, lambda: waiting(bench))
    after = bench.successor()
    assert after.run(30, lambda: waiting(after))
    assert not any(after.row(name).gate.open for name in "ab")
    published(after)
    assert after.run(30, lambda: all_loaded(after))


def test_an_uncertain_engine_stays_so_for_the_next_operator() -> None:
    bench = Bench(trainer_timeout=5.0)
    bench.want(weights=EXTERNAL)
    assert bench.run(60, lambda: bench.row().trust is Trust.UNCERTAIN)
    bench.run(10)
    bench.want(weights=None)
    after = bench.successor()
    after.run(30)
    assert after.row().trust is Trust.UNCERTAIN
    assert not after.row().gate.open
    assert after.called() == []
