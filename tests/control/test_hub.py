"""What the operator sends to whom, on a fake clock and without sockets."""

import pytest

from steersman.control import (
    SAID_VERSION,
    Ack,
    Bye,
    Cut,
    InFlight,
    Nack,
    Observe,
    Ping,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Snapshot,
    Watch,
    Welcome,
)
from steersman.table import Epoch, Table
from steersman_operator.control.outbox import Sent
from steersman_operator.control.sessions import MAX_SESSIONS
from tests.control.support import row, table
from tests.control.wire import Wire, wire_hello


def test_a_hello_is_answered_with_welcome_table_and_watch_in_this_order() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.hub.watch(["a"])

    wire.hello()

    welcome, snapshot, watch = wire.inbox[b"p"]
    assert isinstance(welcome, Welcome)
    assert (welcome.term, welcome.heartbeat, welcome.grant) == (1, 2.0, 10.0)
    assert welcome.api_url == "http://operator:1"
    assert isinstance(snapshot, Snapshot)
    assert snapshot.session == welcome.session
    assert watch == Watch(("a",))


def test_only_one_table_is_outstanding_and_the_latest_wins() -> None:
    wire = Wire()
    wire.publish(table(seq=1))
    session = wire.hello()
    for seq in range(2, 10):
        wire.publish(table(row("a"), seq=seq))
    assert wire.tables() == ["1.1"]

    wire.ack(b"p", session)
    assert wire.tables() == ["1.1", "1.9"]

    wire.ack(b"p", session)
    wire.pass_time(5.0)
    assert wire.tables() == ["1.1", "1.9"]
    assert wire.journal.of("acked") == [("p", "1.1"), ("p", "1.9")]


def test_a_slow_proxy_does_not_hold_up_the_others() -> None:
    wire = Wire()
    wire.publish(table(seq=1))
    wire.hello(b"slow")
    quick = wire.hello(b"quick")
    wire.ack(b"quick", quick)

    for seq in (2, 3):
        wire.publish(table(row("a"), seq=seq))
        wire.ack(b"quick", quick)

    assert wire.tables(b"quick") == ["1.1", "1.2", "1.3"]
    assert wire.tables(b"slow") == ["1.1"]
    lags = {one.ref.uid: (str(one.acked), one.lag) for one in wire.hub.stats.sessions}
    assert lags["quick"] == ("1.3", 0.0)
    wire.clock.advance(4.0)
    assert {one.ref.uid: one.lag for one in wire.hub.stats.sessions} == {"slow": 4.0, "quick": 0.0}


def test_ordinary_changes_wait_for_each_other_and_a_closing_does_not() -> None:
    wire = Wire()
    session = wire.hello()
    wire.publish(table(seq=1), urgent=False)
    wire.pass_time(0.024)
    assert wire.tables() == []
    wire.publish(table(seq=2), urgent=False)
    wire.pass_time(0.002)
    assert wire.tables() == ["1.2"]
    wire.ack(b"p", session)

    # At most ten a second.
    wire.publish(table(row("a"), seq=3), urgent=False)
    wire.pass_time(0.09)
    assert wire.tables() == ["1.2"]
    wire.pass_time(0.02)
    assert wire.tables() == ["1.2", "1.3"]
    wire.ack(b"p", session)

    wire.publish(table(row("b"), seq=4), urgent=False)
    wire.publish(table(row("c"), seq=5), urgent=True)
    assert wire.tables() == ["1.2", "1.3", "1.5"]


def test_a_refused_table_is_not_acknowledged_and_not_sent_again_before_it_changes() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    wire.say(b"p", Nack(session, Epoch(1, 1), None, "undecodable", "a new role"))
    wire.pass_time(2.0)
    wire.pong(epoch=None, digest="")
    wire.pass_time(2.0)
    assert wire.tables() == ["1.1"]
    assert wire.journal.of("nacked") == [("p", "1.1", "undecodable: a new role")]
    assert wire.journal.of("acked") == []
    assert wire.hub.stats.nacks == 1

    wire.publish(table(row("b"), seq=2))
    assert wire.tables() == ["1.1", "1.2"]


def test_a_proxy_with_another_table_in_force_is_sent_it_again() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    wire.ack(b"p", session)
    wire.pass_time(2.0)

    wire.pong(digest="something else")

    assert wire.tables() == ["1.1", "1.1"]
    wire.ack(b"p", session)
    wire.pass_time(2.0)
    wire.pong()
    assert wire.tables() == ["1.1", "1.1"]
    assert wire.hub.stats.resends == 1


def test_an_acknowledgement_of_another_content_does_not_count() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()

    wire.say(b"p", Ack(session, Epoch(1, 1), "something else"))

    assert wire.journal.of("acked") == []
    assert wire.tables() == ["1.1", "1.1"]


def test_a_table_whose_answer_was_lost_is_sent_again() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    wire.pass_time(2.0)

    wire.pong()  # to a ping that came after the table

    assert wire.tables() == ["1.1", "1.1"]
    wire.ack(b"p", session)
    assert wire.journal.of("acked") == [("p", "1.1")]


def test_a_table_that_was_sent_after_the_ping_may_still_be_answered() -> None:
    wire = Wire()
    session = wire.hello()
    wire.pass_time(2.0)
    wire.publish(table(row("a")))

    wire.say(b"p", Pong(1))

    assert wire.tables() == ["1.1"]
    wire.ack(b"p", session)
    assert wire.journal.of("acked") == [("p", "1.1")]


@pytest.mark.parametrize("change", ["session", "epoch", "term"])
def test_acknowledgements_of_what_was_not_sent_are_ignored(change: str) -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    digest = wire.last(b"p", Snapshot).digest
    epoch = {"session": Epoch(1, 1), "epoch": Epoch(1, 9), "term": Epoch(2, 1)}[change]

    wire.say(b"p", Ack(session + (change == "session"), epoch, digest))

    assert wire.journal.of("acked") == []


def test_pings_tell_what_was_heard() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    wire.ack(b"p", session)
    wire.pass_time(2.0)
    ping = wire.last(b"p", Ping)
    assert (ping.n, ping.epoch, ping.heard) == (1, Epoch(1, 1), 0)
    wire.pong(loop_lag=0.5)
    wire.pass_time(2.0)
    assert wire.last(b"p", Ping).heard == 1
    wire.pass_time(2.0)
    assert (wire.last(b"p", Ping).n, wire.last(b"p", Ping).heard) == (3, 1)
    assert wire.hub.stats.sessions[0].loop_lag == 0.5
    assert wire.journal.of("heard") == [("p",)]


@pytest.mark.parametrize("n", [0, 2, 99])
def test_a_pong_to_no_ping_proves_nothing(n: int) -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.hello()
    wire.pass_time(2.0)

    wire.pong(n=n)

    assert wire.journal.of("heard") == []
    wire.pong()
    wire.pong()
    assert wire.journal.of("heard") == [("p",)]


def test_a_silent_proxy_is_lost_once_and_its_session_stays_usable() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    session = wire.hello()
    wire.pass_time(6.0)
    assert wire.journal.of("lost") == []
    wire.pass_time(6.0)
    assert wire.journal.of("lost") == [("p",)]
    assert wire.hub.stats.sessions[0].lost

    wire.ack(b"p", session)

    assert wire.journal.of("acked") == [("p", "1.1")]
    assert not wire.hub.stats.sessions[0].lost
    wire.publish(table(row("b"), seq=2))
    assert wire.tables() == ["1.1", "1.2"]


def test_a_connection_that_is_gone_ends_its_session() -> None:
    wire = Wire()
    wire.hello()
    wire.answer[b"p"] = Sent.GONE

    wire.publish(table(row("a")))

    assert wire.journal.of("lost") == [("p",)]
    assert wire.hub.stats.sessions == ()


def test_a_ping_finds_that_a_connection_is_gone() -> None:
    wire = Wire()
    wire.hello()
    wire.answer[b"p"] = Sent.GONE

    wire.pass_time(2.0)

    assert wire.journal.of("lost") == [("p",)]


def test_what_a_full_socket_does_not_take_is_sent_later_and_only_the_newest() -> None:
    wire = Wire()
    session = wire.hello()
    wire.answer[b"p"] = Sent.FULL
    wire.publish(table(row("a"), seq=1))
    wire.publish(table(row("a"), seq=2))
    wire.hub.watch(["a"])
    wire.hub.watch(["b"])
    wire.hub.cut("a", "late")
    wire.hub.cut("a", "later")
    wire.answer[b"p"] = Sent.OK
    wire.inbox.clear()

    wire.pass_time(2.0)

    snapshot, watch, cut, ping = wire.inbox[b"p"]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.table.epoch == Epoch(1, 2)
    assert watch == Watch(("b",))
    assert cut == Cut("a", "later")
    assert ping == Ping(1, Epoch(1, 2), snapshot.digest, 0)
    assert wire.journal.of("lost") == []
    wire.ack(b"p", session)


def test_another_hello_of_the_same_process_replaces_its_session() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    first = wire.hello(b"p")
    wire.say(b"q", wire_hello("p"))
    second = wire.last(b"q", Welcome).session

    assert second != first
    assert len(wire.hub.stats.sessions) == 1
    assert wire.journal.of("joined") == [("p",), ("p",)]
    assert wire.journal.of("lost") == []
    assert wire.hub.stats.reconnects == 1
    wire.say(b"p", Ack(first, Epoch(1, 1), ""))
    assert wire.last(b"p", Reject).code is RejectCode.STALE
    assert wire.journal.of("acked") == []


def test_two_processes_under_one_uid_have_a_session_each() -> None:
    wire = Wire()
    wire.hello(b"p")
    wire.say(b"q", wire_hello("p", "another"))

    assert len(wire.hub.stats.sessions) == 2
    assert wire.hub.stats.reconnects == 0


def test_a_stale_refusal_tells_of_the_later_term_and_ends_the_session() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.hello()

    wire.say(b"p", Reject(RejectCode.STALE, max_term=5))

    assert wire.journal.of("max_term") == [(5,)]
    assert wire.hub.stats.sessions == ()
    assert wire.hub.stats.rejects == {"by_proxy_stale": 1}


def test_who_leads_no_more_sends_everybody_away_and_publishes_nothing() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.hello()

    wire.hub.follow(leader_hint="operator-1")

    assert isinstance(wire.inbox[b"p"][-1], Retire)
    wire.publish(table(row("b"), seq=2))
    wire.pass_time(10.0)
    assert isinstance(wire.inbox[b"p"][-1], Retire)
    wire.say(b"p", wire_hello("p"))
    answer = wire.last(b"p", Reject)
    assert (answer.code, answer.leader_hint) == (RejectCode.NOT_LEADER, "operator-1")
    assert wire.hub.stats.snapshots == 1


def test_a_new_term_begins_with_nothing() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.hub.watch(["a"])
    wire.hello()

    wire.hub.lead(term=2, api_url="http://operator:2")

    assert wire.hub.stats.epoch is None
    wire.inbox.clear()
    wire.hello()
    (welcome,) = wire.inbox[b"p"]
    assert isinstance(welcome, Welcome)
    assert (welcome.term, welcome.api_url) == (2, "http://operator:2")


def test_reports_and_observations_are_passed_on_within_their_session() -> None:
    wire = Wire()
    session = wire.hello()

    wire.say(b"p", InFlight(session, Epoch(1, 1), {"a": 3}, 1))
    wire.say(b"p", InFlight(session + 1, Epoch(1, 1), {"a": 0}, 1))
    wire.say(b"p", Observe("a", "connect_refused", "10.0.0.1"))
    wire.say(b"p", Observe("a", SAID_VERSION, "8"))
    wire.say(b"p", Observe("no such engine", SAID_VERSION, ""))
    wire.say(b"p", Bye("shutting down"))

    assert wire.journal.of("in_flight") == [("p", "1.1", {"a": 3})]
    assert wire.journal.of("observed") == [("p", "a", "connect_refused", "10.0.0.1")]
    assert wire.journal.of("seen") == [("p", "a", "8"), ("p", "no such engine", None)]
    assert wire.hub.stats.sessions[0].leaving


def test_who_has_no_session_is_told_to_say_hello() -> None:
    wire = Wire()

    wire.say(b"p", Pong(1))
    wire.say(b"p", Bye())
    wire.say(b"p", Reject(RejectCode.STALE))

    (answer,) = wire.inbox[b"p"]
    assert isinstance(answer, Reject)
    assert answer.code is RejectCode.STALE


@pytest.mark.parametrize(
    ("had_engines", "said", "meant"),
    [
        (False, None, False),
        (True, None, True),
        (True, False, False),
        (False, True, True),
    ],
)
def test_an_empty_table_says_whether_it_is_meant(had_engines, said, meant) -> None:
    wire = Wire()
    if had_engines:
        wire.publish(table(row("a"), seq=1))
    wire.publish(Table(epoch=Epoch(1, 2)), removed_ok=said)

    wire.hello()

    assert wire.last(b"p", Snapshot).removed_ok is meant


def test_the_listener_may_call_back_from_every_callback() -> None:
    wire = Wire()
    seqs = iter(range(2, 100))
    journal = wire.journal

    def publish(*_: object) -> None:
        wire.publish(table(row("a"), seq=next(seqs)))
        wire.hub.watch(["a"])

    for name in ("joined", "acked", "lost", "heard", "in_flight"):
        setattr(journal, name, publish)
    wire.publish(table(row("a")))
    session = wire.hello(b"p")
    wire.hello(b"q")
    wire.ack(b"p", session)
    wire.say(b"p", InFlight(session, Epoch(1, 1), {"a": 0}))
    wire.answer[b"q"] = Sent.GONE
    wire.pass_time(10.0)
    wire.ack(b"p", session)

    assert wire.hub.stats.sessions[0].ref.uid == "p"


def test_there_are_only_so_many_sessions_and_lost_ones_give_way() -> None:
    wire = Wire()
    for number in range(MAX_SESSIONS):
        wire.hello(b"p%d" % number)
    wire.say(b"late", wire_hello("late"))
    assert wire.last(b"late", Reject).code is RejectCode.UNAUTHORISED

    wire.pass_time(8.0)
    wire.hello(b"late")

    assert len(wire.hub.stats.sessions) == MAX_SESSIONS


def test_the_age_of_a_table_is_told_as_a_duration() -> None:
    wire = Wire()
    wire.publish(table(row("a")))
    wire.clock.advance(3.0)

    wire.hello()

    assert wire.last(b"p", Snapshot).age == pytest.approx(3.0)
