"""New weights: which engines get them, in which order, and what becomes of those that do not."""

import pytest

from steersman.engine import Control, Trust
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import Drift, PromoteAt, SourceKind, Weights
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench, Truth

DISK = Weights(version="2", source=SourceKind.DISK, path="/w/2")
LOAD = [CallKind.PAUSE, CallKind.REFIT, CallKind.RESUME]


def loaded(bench: Bench, name: str = "a", version: str = "2") -> bool:
    return bench.settled(Control.ACTIVE, name) and bench.row(name).version == version


def all_loaded(bench: Bench, version: str = "2") -> bool:
    return all(loaded(bench, name, version) for name in bench.truths)


# --- from disk ------------------------------------------------------------------------------------


def test_an_engine_is_closed_paused_loaded_looked_at_and_opened() -> None:
    bench = Bench()
    bench.want(weights=DISK)
    assert not bench.row().gate.open, "closed in the same step"
    assert bench.run(30, lambda: loaded(bench))
    assert bench.called() == LOAD
    assert bench.row().trust is Trust.VERIFIED
    assert bench.fleet_max() == "2"
    assert bench.engine().loaded == DISK.id
    bench.run(60)
    assert bench.called() == LOAD, "nothing more is done"


def test_what_an_engine_has_already_is_not_loaded() -> None:
    bench = Bench(truths={"a": Truth(version="2")})
    bench.want(weights=DISK)
    bench.run(30)
    assert bench.called() == []
    assert loaded(bench)


def test_the_call_has_the_weights_and_the_time_of_the_pool() -> None:
    bench = Bench(refit_timeout=77.0)
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    call = bench.calls[-1]
    assert (call.weights, call.timeout, call.boot_id) == (DISK, 77.0, "boot-1")


@pytest.mark.parametrize(("limit", "most"), [("1", 1), ("2", 2), ("50%", 2), ("10", 3)])
def test_engines_take_turns(limit: str, most: int) -> None:
    bench = Bench("abcd", max_unavailable=limit)
    bench.want(weights=DISK)
    closed = []

    def done() -> bool:
        closed.append(sum(not bench.row(name).gate.open for name in "abcd"))
        return all_loaded(bench)

    assert bench.run(120, done)
    assert max(closed) == most, "the last one that serves is never closed"
    assert all(bench.called(name) == LOAD for name in "abcd")


def test_an_engine_that_does_not_serve_takes_nobody_s_turn() -> None:
    """One that was restarted is closed for requests in any case."""
    bench = Bench("ab")
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    bench.truths["a"].restart()
    assert bench.run(60, lambda: bench.called("a") == [*LOAD, *LOAD] and all_loaded(bench))
    assert bench.called("b") == LOAD


def test_a_dead_engine_counts_as_closed() -> None:
    truths = {"a": Truth(answers=False), "b": Truth(), "c": Truth()}
    bench = Bench("abc", truths=truths)
    bench.run(60)
    bench.want(weights=DISK)
    bench.run(60)
    assert bench.called("b") == bench.called("c") == []
    bench.want(max_unavailable="2")
    assert bench.run(60, lambda: loaded(bench, "b") and loaded(bench, "c"))


def test_engines_that_sleep_by_wish_keep_nobody_waiting() -> None:
    bench = Bench("abc")
    bench.want(overrides={"b": Control.ASLEEP, "c": Control.PAUSED})
    asleep = [("b", Control.ASLEEP), ("c", Control.PAUSED)]
    assert bench.run(60, lambda: all(bench.settled(control, name) for name, control in asleep))
    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench) and bench.row("c").version == "2")
    assert bench.row("b").version == "1", "when it is woken"


def test_a_paused_rollout_closes_nobody_else() -> None:
    bench = Bench("abc")
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    bench.want(rollout_paused=True)
    bench.release()
    assert bench.run(60, lambda: loaded(bench)), "what has begun is finished"
    bench.run(60)
    assert bench.called("b") == bench.called("c") == []
    bench.want(rollout_paused=False)
    assert bench.run(60, lambda: all_loaded(bench))


def test_a_newer_target_takes_over() -> None:
    bench = Bench("ab")
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    newer = Weights(version="3", source=SourceKind.DISK, path="/w/3")
    bench.want(weights=newer)
    bench.release()
    assert bench.run(60, lambda: all_loaded(bench, "3"))
    assert bench.called("b") == LOAD, "the older one is skipped"


def test_a_target_that_is_taken_back_before_anything_was_done_changes_nothing() -> None:
    bench = Bench()
    bench.quiet.add("x")
    bench.want(weights=DISK)
    bench.run(3)
    bench.want(weights=None)
    bench.release()
    assert bench.run(30, lambda: bench.settled(Control.ACTIVE))
    assert bench.called() == []


def test_another_nonce_loads_the_same_once_more() -> None:
    bench = Bench("ab")
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    again = Weights(version="2", source=SourceKind.DISK, path="/w/2", nonce="n")
    bench.want(weights=again)
    assert bench.run(60, lambda: bench.called("b") == [*LOAD, *LOAD])
    bench.run(60)
    assert bench.called("a") == bench.called("b") == [*LOAD, *LOAD]
    # Also by the next operator; what is restarted has fresh weights, whatever the nonce.
    after = bench.successor()
    after.truths["a"].restart()
    after.truths["a"].version = "2"
    after.run(60)
    assert after.called("a") == after.called("b") == []
    assert all_loaded(after)


def test_an_older_version_is_a_wish_like_any_other() -> None:
    bench = Bench("ab")
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    bench.want(weights=Weights(version="1", source=SourceKind.DISK, path="/w/1"))
    assert bench.run(60, lambda: loaded(bench, "a", "1"))
    assert bench.fleet_max() == "1", "or nobody would serve under latest-only"
    assert bench.run(60, lambda: all_loaded(bench, "1"))


def test_a_version_that_nobody_asked_for_does_not_move_the_max() -> None:
    bench = Bench("ab")
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    bench.truths["a"].version = "9"
    bench.run(30)
    assert bench.row("a").version == "9"
    assert bench.fleet_max() == "2"


@pytest.mark.parametrize("promote_at", PromoteAt)
def test_when_a_version_begins_to_count(promote_at: PromoteAt) -> None:
    bench = Bench("ab", promote_at=promote_at)
    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench, "a") or loaded(bench, "b"))
    assert bench.fleet_max() == ("2" if promote_at is PromoteAt.FIRST_OPEN else "1")
    assert bench.run(60, lambda: all_loaded(bench))
    assert bench.fleet_max() == "2"


@pytest.mark.parametrize("drift", Drift)
def test_other_weights_behind_our_back(drift: Drift) -> None:
    bench = Bench("ab", drift=drift)
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    bench.truths["a"].version = "9"
    bench.run(60)
    if drift is Drift.ENFORCE:
        assert bench.called("a") == [*LOAD, *LOAD]
        assert all_loaded(bench)
    else:
        assert bench.called("a") == LOAD
        assert loaded(bench, "a", "9")


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_refused_load_leaves_the_engine_with_what_it_has() -> None:
    bench = Bench()
    bench.want(weights=DISK)
    for _ in range(3):
        bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
        bench.end_call(Outcome.REFUSED)
    bench.release()
    assert bench.run(60, lambda: loaded(bench, "a", "1"))
    assert bench.row().trust is Trust.VERIFIED
    assert "NotLoaded" in bench.notes()
    bench.run(60)
    assert bench.called().count(CallKind.REFIT) == 3, (
        "it may be a matter of a moment, not of minutes"
    )
    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench)), "unless it is asked for again"


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
def test_a_load_that_failed_leaves_the_engine_uncertain_until_a_whole_one(outcome: Outcome) -> None:
    bench = Bench("ab", refit_timeout=5.0)
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    bench.end_call(outcome)
    bench.stop = None
    bench.quiet.add("calls")
    bench.run(20)
    assert bench.row().trust is Trust.UNCERTAIN
    assert not bench.row().gate.open
    assert bench.called()[:3] == [CallKind.PAUSE, CallKind.REFIT, CallKind.REFIT]
    assert bench.called("b") == [], "one at a time"
    bench.release()
    assert bench.run(60, lambda: all_loaded(bench))
    assert bench.row().trust is Trust.VERIFIED


def test_why_a_load_failed_is_told_and_other_weights_do_not_wait_for_it() -> None:
    bench = Bench()
    bench.want(weights=DISK)
    for _ in range(4):
        bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
        bench.end_call(Outcome.FAILED)
    bench.release()
    bench.turn()
    assert bench.engine().problem == "refit: so"
    assert bench.op().next_try > bench.now + 2
    bench.want(weights=Weights(version="3", source=SourceKind.DISK, path="/w/3"))
    assert bench.run(2, lambda: loaded(bench, "a", "3"))
    assert bench.engine().problem == ""


def test_a_load_whose_end_was_not_heard_is_believed_when_the_version_has_changed() -> None:
    bench = Bench()
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    bench.end_call(Outcome.UNKNOWN, happens=True)
    bench.release()
    assert bench.run(30, lambda: loaded(bench))
    assert bench.called() == LOAD


def test_of_a_load_of_the_same_version_nothing_is_proven_by_the_version() -> None:
    bench = Bench(refit_timeout=5.0)
    bench.want(weights=DISK)
    assert bench.run(30, lambda: loaded(bench))
    again = Weights(version="2", source=SourceKind.DISK, path="/w/2", nonce="n")
    bench.want(weights=again)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    bench.end_call(Outcome.UNKNOWN, happens=True)
    bench.release()
    assert bench.run(60, lambda: loaded(bench))
    assert bench.called()[3:] == [CallKind.PAUSE, CallKind.REFIT, CallKind.REFIT, CallKind.RESUME]


def test_an_engine_that_says_it_has_loaded_and_does_not_show_it_stays_closed() -> None:
    bench = Bench()
    bench.want(weights=DISK)
    for _ in range(3):
        bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
        bench.end_call(Outcome.OK, happens=False)
        bench.stop = None
        bench.quiet.add("calls")
        bench.run(100, lambda: bool(bench.calls))
        bench.release()
    assert not bench.row().gate.open
    assert bench.row().trust is Trust.UNCERTAIN
    assert bench.run(200, lambda: loaded(bench))


def test_a_dead_engine_is_loaded_when_it_is_back() -> None:
    bench = Bench("ab")
    bench.want(weights=DISK)
    bench.until_phase(Phase.EXECUTING, call=CallKind.REFIT)
    bench.truths["a"].answers = False
    bench.end_call(Outcome.UNKNOWN)
    bench.release()
    bench.run(30)
    assert not bench.row("a").gate.open
    bench.truths["a"].answers = True
    bench.truths["a"].restart()
    assert bench.run(200, lambda: all_loaded(bench))


def test_a_restarted_engine_is_unsynced_and_gets_its_weights_again() -> None:
    """Row 1 of the failures that others have reported: the recovered engine with other weights."""
    bench = Bench("ab")
    bench.want(weights=DISK)
    assert bench.run(60, lambda: all_loaded(bench))
    bench.truths["a"].restart()
    bench.quiet.update(("store", "calls"))
    bench.run(10)
    assert bench.row("a").trust is Trust.UNSYNCED
    assert bench.row("a").version is None
    bench.release()
    assert bench.run(60, lambda: all_loaded(bench))


# --- asleep ---------------------------------------------------------------------------------------


def test_a_sleeping_engine_gets_its_weights_when_it_is_woken() -> None:
    bench = Bench(truths={"a": Truth(backup=False)})
    bench.want(Control.ASLEEP)
    assert bench.run(60, lambda: bench.settled(Control.ASLEEP))
    before = len(bench.called())
    bench.want(weights=DISK)
    bench.run(60)
    assert len(bench.called()) == before, "not while it sleeps"
    bench.want(Control.ACTIVE)
    assert bench.run(60, lambda: loaded(bench))
    wakes = [one for one in bench.log if getattr(one, "kind", None) is CallKind.WAKE]
    assert [one.tags for one in wakes] == [("weights",), ("kv_cache",)]  # type: ignore[union-attr]
    order = [CallKind.WAKE, CallKind.REFIT, CallKind.WAKE, CallKind.RESUME]
    assert bench.called()[before:] == order


def test_lost_weights_are_loaded_again_even_if_the_version_is_right() -> None:
    bench = Bench(truths={"a": Truth(backup=False)})
    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench))
    bench.want(Control.ASLEEP)
    assert bench.run(60, lambda: bench.settled(Control.ASLEEP))
    bench.want(Control.ACTIVE)
    assert bench.run(60, lambda: loaded(bench))
    assert bench.called().count(CallKind.REFIT) == 2


def test_a_paused_engine_is_loaded_and_stays_paused() -> None:
    bench = Bench()
    bench.want(Control.PAUSED)
    assert bench.run(60, lambda: bench.settled(Control.PAUSED))
    bench.want(weights=DISK)
    assert bench.run(60, lambda: bench.row().version == "2" and bench.settled(Control.PAUSED))
    assert bench.called() == [CallKind.PAUSE, CallKind.REFIT]


# --- takeovers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize(
    "phase", [Phase.DRAINING, Phase.CLAIMING, Phase.EXECUTING, Phase.VERIFYING]
)
def test_the_next_operator_finishes_a_refit(phase: Phase, *, happens: bool) -> None:
    bench = Bench(refit_timeout=5.0)
    bench.want(weights=DISK)
    if phase is Phase.DRAINING:
        bench.until_phase(phase)
    else:
        bench.until_phase(phase, call=CallKind.REFIT)
    begun = phase in (Phase.EXECUTING, Phase.VERIFYING)
    if phase is Phase.EXECUTING and happens:
        bench.truths["a"].version = "2"
    after = bench.successor()
    after.stop = None
    assert after.run(60, lambda: loaded(after))
    refits = bench.called().count(CallKind.REFIT) + after.called().count(CallKind.REFIT)
    done_before = begun and (phase is Phase.VERIFYING or happens)
    assert refits == (1 if done_before or not begun else 2)
    assert after.engine().facts.paused is False


def test_what_was_loaded_is_remembered() -> None:
    bench = Bench("ab")
    bench.want(weights=Weights(version="2", source=SourceKind.DISK, path="/w/2", nonce="n"))
    assert bench.run(60, lambda: all_loaded(bench))
    after = bench.successor()
    after.run(30)
    assert after.called("a") == after.called("b") == []
    assert all_loaded(after)


# --- what proxies are told of their caches --------------------------------------------------------


def test_every_change_of_weights_voids_what_is_known_of_the_cache() -> None:
    bench = Bench()
    seen = [bench.row().cache_generation]

    def rises() -> None:
        assert bench.row().cache_generation > seen[-1]
        seen.append(bench.row().cache_generation)

    bench.want(weights=DISK)
    assert bench.run(60, lambda: loaded(bench))
    rises()
    bench.truths["a"].version = "9"
    bench.run(10)
    rises()
    bench.truths["a"].restart()
    bench.run(60)
    rises()
