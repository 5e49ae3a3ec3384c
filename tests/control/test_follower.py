"""Whom the proxy follows, and what it makes of tables; on a fake clock and without sockets."""

import pytest

from steersman.control import (
    Ack,
    Bye,
    Cut,
    Hello,
    InFlight,
    Nack,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Watch,
    Welcome,
    encode,
)
from steersman.table import Epoch, Table
from tests.control.operators import Stage
from tests.control.support import row, table, take


def test_the_first_hello_says_that_nothing_is_known() -> None:
    operator = Stage().operator()

    operator.connect()

    (hello,) = operator.heard
    assert hello == Hello(1, 1, "pod", "boot", "test", (), None, 0)


def test_a_later_hello_says_what_is_known() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join(term=3)
    operator.sends(table(row("a"), term=3, seq=7))

    operator.disconnect()
    operator.connect()

    hello = operator.last(Hello)
    assert (hello.last_epoch, hello.max_term) == (Epoch(3, 7), 3)
    assert stage.epoch == "3.7"


def test_a_hello_without_an_answer_is_said_again() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.connect()

    stage.pass_time(4.5)

    assert len(operator.got(Hello)) == 3


def test_who_does_not_lead_is_asked_again_when_it_says() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.connect()
    operator.reject(after=0.5)
    stage.pass_time(0.4)
    assert len(operator.got(Hello)) == 1
    stage.pass_time(0.2)
    assert len(operator.got(Hello)) == 2
    assert stage.follower.status.links[0].detail == "no answer yet"


@pytest.mark.parametrize(
    "code", [RejectCode.UNAUTHORISED, RejectCode.BAD_PROTO, RejectCode.MALFORMED]
)
def test_who_refuses_for_good_is_not_pestered(code: RejectCode) -> None:
    stage = Stage()
    operator = stage.operator()
    operator.connect()
    operator.reject(code, after=0.0)

    stage.pass_time(4.9)

    assert len(operator.got(Hello)) == 1
    assert stage.follower.status.links[0].detail == f"because {code.value}"
    stage.pass_time(0.2)
    assert len(operator.got(Hello)) == 2


def test_a_table_is_acknowledged_with_the_digest_that_came_with_it() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    operator.sends(table(row("a")), digest="as the operator says", age=2.0)

    assert operator.last(Ack) == Ack(1, Epoch(1, 1), "as the operator says")
    assert stage.epoch == "1.1"
    assert stage.follower.status.age == 2.0


def test_the_same_table_again_is_acknowledged_and_not_applied_again() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    for _ in range(3):
        operator.sends(table(row("a")))

    assert len(operator.got(Ack)) == 3
    assert stage.follower.status.applied == 1


def test_the_same_epoch_with_another_content_from_the_leader_heals_a_difference() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))

    operator.sends(table(row("b")))

    assert [engine.id for engine in stage.fleet.engines()] == ["b"]
    assert len(operator.got(Ack)) == 2


def test_an_older_table_is_refused_as_stale() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join(term=2)
    operator.sends(table(row("a"), term=2, seq=5))

    operator.sends(table(row("b"), term=2, seq=4))

    assert operator.last(Reject).code is RejectCode.STALE
    assert stage.epoch == "2.5"
    assert len(operator.got(Ack)) == 1


def test_a_table_of_another_session_is_ignored() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    operator.sends(table(row("a")), session=99)

    assert stage.epoch is None
    assert operator.got(Ack) == []


def test_a_table_of_another_term_than_the_sessions_is_refused() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join(term=1)

    operator.sends(table(row("a"), term=2))

    assert operator.last(Nack).code == "term"
    assert stage.epoch is None


def test_a_table_that_cannot_be_read_leaves_the_last_good_one_in_force() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))

    twice = table(row("b"), row("b"), seq=2)
    operator.sends(twice)

    nack = operator.last(Nack)
    assert (nack.session, nack.epoch, nack.still) == (1, Epoch(1, 2), Epoch(1, 1))
    assert nack.code == "undecodable"
    assert stage.epoch == "1.1"
    assert stage.follower.status.nacks == 1
    assert "twice" in stage.follower.status.last_problem
    operator.sends(table(row("b"), seq=3))
    assert stage.follower.status.last_problem == ""


def test_a_table_at_which_the_fleet_fails_leaves_the_last_good_one_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))

    def fail(_: Table) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(stage.fleet, "apply", fail)
    operator.sends(table(row("b"), seq=2))

    assert operator.last(Nack).code == "fault"
    assert stage.epoch == "1.1"


def test_an_empty_table_must_be_meant() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))

    operator.sends(table(seq=2))
    assert operator.last(Nack).code == "empty"
    assert stage.epoch == "1.1"

    operator.sends(table(seq=3), removed_ok=True)
    assert stage.epoch == "1.3"


def test_an_empty_first_table_takes_nothing_away() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    operator.sends(table())

    assert stage.epoch == "1.1"


def test_the_highest_term_is_followed() -> None:
    stage = Stage()
    old, new = stage.operator("old"), stage.operator("new")
    old.join(term=1)
    old.sends(table(row("a"), term=1, seq=50))

    new.join(term=2)
    new.sends(table(row("b"), term=2, seq=1))

    assert stage.epoch == "2.1"
    assert stage.follower.leader is new.link
    # The deposed one learns of it, whatever it says next.
    old.sends(table(row("c"), term=1, seq=51))
    refusal = old.last(Reject)
    assert (refusal.code, refusal.max_term) == (RejectCode.STALE, 2)
    assert stage.epoch == "2.1"


def test_a_leader_of_a_lower_term_is_turned_away_at_its_welcome() -> None:
    stage = Stage()
    new, old = stage.operator("new"), stage.operator("old")
    new.join(term=5)
    new.disconnect()

    old.join(term=4)

    assert old.last(Reject).max_term == 5
    assert stage.follower.leader is None


def test_orders_of_a_deposed_leader_are_ignored() -> None:
    stage = Stage()
    old, new = stage.operator("old"), stage.operator("new")
    old.join(term=1)
    old.sends(table(row("a")))
    new.join(term=2)
    old.heard.clear()

    old.says(Cut("a", "no"))
    old.says(Watch(("a",)))
    old.ping()

    assert stage.cuts == []
    assert old.heard == []


def test_two_leaders_of_one_term_are_not_followed_in_turns() -> None:
    stage = Stage()
    one, two = stage.operator("one"), stage.operator("two")
    one.join(term=1)

    two.join(term=1)
    assert stage.follower.leader is one.link

    stage.pass_time(11.0)  # the first is out of contact
    two.welcome(term=1)
    assert stage.follower.leader is two.link


def test_two_addresses_of_one_operator_do_not_end_each_others_session() -> None:
    stage = Stage()
    one, two = stage.operator("one", boot="same"), stage.operator("two", boot="same")
    one.join()
    two.join()
    assert stage.follower.leader is two.link

    one.reject(RejectCode.STALE)  # it has no session any more
    stage.pass_time(6.0)
    two.ping()
    stage.pass_time(6.0)
    assert len(one.got(Hello)) == 1

    two.disconnect()
    stage.follower.tick()
    assert len(one.got(Hello)) == 2


def test_a_session_that_the_leader_does_not_know_is_begun_anew() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    operator.reject(RejectCode.STALE)
    operator.reject(RejectCode.STALE)

    assert len(operator.got(Hello)) == 2
    operator.welcome()
    operator.sends(table(row("a")))
    assert stage.epoch == "1.1"
    assert stage.follower.status.reconnects == 1


def test_who_retires_is_asked_again_and_others_at_once() -> None:
    stage = Stage()
    one, two = stage.operator("one"), stage.operator("two")
    one.join()
    one.sends(table(row("a")))
    two.connect()
    two.reject(after=50.0)

    one.says(Retire("another operator leads"))
    stage.follower.tick()

    assert stage.follower.leader is None
    assert stage.epoch == "1.1"
    assert len(one.got(Hello)) == 2
    assert len(two.got(Hello)) == 2


def test_a_silent_leader_is_greeted_again() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    stage.pass_time(6.5)

    assert len(operator.got(Hello)) == 2


def test_a_welcome_that_nobody_asked_for_is_ignored() -> None:
    stage = Stage()
    operator = stage.operator()

    operator.welcome()

    assert stage.follower.leader is None


def test_an_operator_of_another_protocol_is_not_followed() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.connect()

    operator.says(Welcome(2, 1, 1, 2.0, 10.0, "", "a"))

    assert stage.follower.leader is None


def test_bad_frames_are_counted_and_do_not_end_the_session() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()

    stage.follower.received(operator.link, b"\xff\xff")
    stage.follower.received(operator.link, encode(Hello(1, 1, "p", "b")))
    operator.sends(table(row("a")))

    assert stage.follower.status.bad_frames == 2
    assert stage.epoch == "1.1"


def test_a_pong_tells_the_table_in_force() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.ping()
    assert operator.last(Pong) == Pong(1, None, "", 0.0)

    operator.sends(table(row("a")), digest="d")
    stage.follower.loop_lag = 0.75
    operator.ping()
    operator.ping()

    assert operator.got(Pong)[1:] == [
        Pong(2, Epoch(1, 1), "d", 0.75),
        Pong(3, Epoch(1, 1), "d", 0.0),
    ]


def test_peers_are_those_of_the_last_table() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")), peers=("x",))
    operator.sends(table(row("a")), peers=("y", "z"))

    assert stage.follower.peers == ("y", "z")


def test_reports_repeat_while_something_runs_and_stop_at_zero() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))
    one, two = take(stage.fleet), take(stage.fleet)
    operator.says(Watch(("a",)))
    stage.pass_time(1.1)
    assert [report.counts for report in operator.got(InFlight)] == [{"a": 2}] * 3

    one.guard.release()
    two.guard.release()
    stage.pass_time(0.0)
    assert operator.last(InFlight).counts == {"a": 0}
    reports = len(operator.got(InFlight))
    stage.pass_time(5.0)
    assert len(operator.got(InFlight)) == reports
    assert [report.seq for report in operator.got(InFlight)] == list(range(1, reports + 1))


def test_a_zero_that_could_not_be_sent_is_told_later() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))
    running = take(stage.fleet)
    operator.says(Watch(("a",)))
    operator.takes = False
    running.guard.release()
    stage.pass_time(1.0)

    operator.takes = True
    stage.pass_time(0.6)

    assert operator.last(InFlight).counts == {"a": 0}


def test_only_engines_that_were_not_watched_before_are_reported_when_the_watch_changes() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a"), row("b"), row("c")))
    running = take(stage.fleet, "a")
    operator.says(Watch(("a", "b")))
    operator.says(Watch(("a", "b", "c")))
    operator.says(Watch(("a",)))
    assert [one.counts for one in operator.got(InFlight)] == [{"a": 1, "b": 0}, {"c": 0}]

    # What was said of it before does not count by the next table; nor is its end forgotten.
    operator.sends(table(row("a"), row("b"), seq=2))
    assert operator.last(InFlight).counts == {"a": 1}
    assert operator.last(InFlight).epoch == Epoch(1, 2)
    operator.says(Watch(("a", "b")))
    running.guard.release()
    stage.pass_time(0.0)
    assert operator.last(InFlight).counts == {"a": 0, "b": 0}


def test_no_watch_no_report() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))
    operator.says(Watch(("a",)))
    operator.says(Watch(()))
    operator.heard.clear()

    take(stage.fleet).guard.release()
    stage.pass_time(2.0)

    assert operator.got(InFlight) == []


def test_a_new_leader_is_not_told_what_the_old_one_watched() -> None:
    stage = Stage()
    old, new = stage.operator("old"), stage.operator("new")
    old.join(term=1)
    old.sends(table(row("a")))
    old.says(Watch(("a",)))

    new.join(term=2)
    new.sends(table(row("a"), term=2))

    assert new.got(InFlight) == []
    new.says(Watch(("a",)))
    assert new.last(InFlight).epoch == Epoch(2, 1)


def test_a_leaving_proxy_says_so_once_to_its_leader() -> None:
    stage = Stage()
    operator, other = stage.operator(), stage.operator("b")
    operator.join()
    other.connect()

    stage.follower.leave("shutting down")

    assert operator.got(Bye) == [Bye("shutting down")]
    assert other.got(Bye) == []
