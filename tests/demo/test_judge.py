import pytest

from steersman_sim.demo.judge import FLIGHT, judge, newest_in_force
from steersman_sim.demo.promises import percent, promises
from steersman_sim.demo.records import NEW, OLD
from steersman_sim.demo.summary import all_kept
from tests.demo.made_up import BEGAN, URLS, arrival, eventful_run, outcome, records

RISE = ((OLD, 0.0), (NEW, 5.0))


def broken(verdict) -> set[str]:
    return {promise.name for promise in promises(verdict) if not promise.kept}


def test_a_good_run_keeps_every_promise():
    verdict = judge(eventful_run())
    assert broken(verdict) == set()
    assert all_kept(verdict)
    assert verdict.sent == verdict.answered == 200
    assert {name: count.received for name, count in verdict.engines.items()} == {
        "engine-1": 80,
        "engine-2": 120,
    }


# --- stale dispatches ---------------------------------------------------------------------------------


def stale_count(*, sent, at, version, latest_only=True, maxima=RISE) -> int:
    run = records(
        outcomes=[outcome(sent=sent, latest_only=latest_only)],
        arrivals=[arrival(at=at, versions=(version,))],
        maxima=maxima,
    )
    return judge(run).stale


def test_a_latest_only_request_on_old_weights_after_the_rise_is_stale():
    assert stale_count(sent=5.1, at=5.11, version=OLD) == 1


def test_on_the_newest_weights_it_is_not_stale():
    assert stale_count(sent=5.1, at=5.11, version=NEW) == 0
    assert stale_count(sent=4.0, at=4.01, version=OLD) == 0, "before the rise"


def test_a_request_without_the_policy_is_never_stale():
    assert stale_count(sent=5.1, at=5.11, version=OLD, latest_only=False) == 0


def test_a_request_may_have_been_on_its_way_while_the_table_changed():
    assert stale_count(sent=4.99, at=5.01, version=OLD) == 0
    assert stale_count(sent=4.0, at=5.0 + FLIGHT - 0.01, version=OLD) == 0


def test_a_request_that_was_held_beyond_the_rise_is_judged_by_its_arrival():
    assert stale_count(sent=1.0, at=5.0 + FLIGHT + 0.01, version=OLD) == 1


def test_versions_are_ordered_as_numbers():
    assert stale_count(sent=5.1, at=5.2, version="10", maxima=(("9", 0.0),)) == 0
    assert stale_count(sent=5.1, at=5.2, version="9", maxima=(("10", 0.0),)) == 1


def test_before_the_first_table_there_is_no_newest_version():
    run = records(maxima=RISE)
    assert newest_in_force(run.maxima, at=BEGAN - 1) is None
    assert newest_in_force(run.maxima, at=BEGAN + 1) == OLD
    assert newest_in_force(run.maxima, at=BEGAN + 5) == NEW


# --- closed engines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "expected"), [(2.99, 0), (3.01, 1), (4.99, 1), (5.01, 0)])
def test_what_a_closed_engine_receives_is_counted(at, expected):
    run = records(
        outcomes=[outcome(sent=at - 0.01)],
        arrivals=[arrival(at=at)],
        closures=[("engine-1", 3.0, 5.0), ("engine-2", 0.0, 10.0)],
    )
    verdict = judge(run)
    assert verdict.engines["engine-1"].while_closed == expected
    assert verdict.engines["engine-2"].while_closed == 0


def test_a_closed_engine_must_not_get_probes_either():
    run = records(arrivals=[arrival(None, at=4.0)], closures=[("engine-1", 3.0, 5.0)])
    verdict = judge(run)
    assert verdict.engines["engine-1"].while_closed == 1
    assert verdict.engines["engine-1"].received == 0, "but they are no requests of the traffic"


def test_a_closure_that_has_not_ended_counts():
    run = records(arrivals=[arrival(at=4.0)], closures=[("engine-1", 3.0, 5.0)])
    run.closures[0].until = None
    assert judge(run).while_closed == 1


# --- stamps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["worker", "version"])
def test_an_answer_without_a_stamp_is_counted(missing):
    verdict = judge(records(outcomes=[outcome(**{missing: None})], arrivals=[arrival()]))
    assert verdict.unstamped == 1
    assert broken(verdict) == {"stamped answers"}
    assert verdict.stamped_share == 0.0


def test_a_stamp_must_say_what_the_journal_says():
    wrong_version = outcome(1, version=NEW)
    wrong_engine = outcome(2, worker=URLS["engine-2"])
    verdict = judge(
        records(outcomes=[wrong_version, wrong_engine], arrivals=[arrival(1), arrival(2)])
    )
    assert verdict.misstamped == 2


def test_the_stamp_of_a_mixed_answer_names_the_last_weights_and_has_the_flag():
    mixed = arrival(versions=(OLD, NEW))
    flagged = judge(records(outcomes=[outcome(version=NEW, mixed=True)], arrivals=[mixed]))
    assert (flagged.mixed, flagged.unflagged, flagged.misstamped) == (1, 0, 0)
    silent = judge(records(outcomes=[outcome(version=NEW)], arrivals=[mixed]))
    assert (silent.mixed, silent.unflagged) == (0, 1)


def test_an_answer_whose_journal_was_not_read_yet_is_not_held_against_anybody():
    assert broken(judge(records(outcomes=[outcome()]))) == set()
    assert broken(judge(records(outcomes=[outcome()], arrivals=[arrival(versions=())]))) == set()


# --- the rest -----------------------------------------------------------------------------------------


def test_failed_and_waiting_requests_are_told_apart():
    verdict = judge(
        records(outcomes=[outcome(1, error="status 503"), outcome(2, ended=None), outcome(3)])
    )
    assert (verdict.failures, verdict.waiting, verdict.answered) == (["status 503"], 1, 1)
    assert not all_kept(verdict)


def test_a_request_that_reaches_two_engines_is_told():
    verdict = judge(
        records(outcomes=[outcome()], arrivals=[arrival(), arrival(engine="engine-2", at=1.2)])
    )
    assert broken(verdict) == {"sent twice", "stamped answers"}


def test_a_run_without_an_answer_proves_nothing():
    assert not all_kept(judge(records()))


def test_the_longest_wait_is_from_sending_to_arrival():
    verdict = judge(
        records(
            outcomes=[outcome(1, sent=1.0), outcome(2, sent=1.0)],
            arrivals=[arrival(1, at=1.01), arrival(2, at=3.5)],
        )
    )
    assert verdict.longest_wait == pytest.approx(2.5)


def test_a_share_is_whole_only_if_nothing_is_missing():
    assert percent(1.0) == "100 %"
    assert percent(0.99999) == "99.9 %"
    assert percent(0.5) == "50.0 %"
