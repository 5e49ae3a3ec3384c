"""Who may take part: protocol, address, term."""

import pytest

from steersman.control import Reject, RejectCode, Welcome
from steersman_operator.fleet.events import ProxyRef
from tests.control.support import row, table
from tests.control.wire import Wire, wire_hello


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"proto_min": 2, "proto_max": 3}, RejectCode.BAD_PROTO),
        ({"proto_min": 0, "proto_max": 0}, RejectCode.BAD_PROTO),
        ({"uid": "impostor"}, RejectCode.UNAUTHORISED),
        ({"max_term": 2}, RejectCode.NOT_LEADER),
    ],
)
def test_whom_the_leader_turns_away(hello, code) -> None:
    wire = Wire(check_peer=lambda ref, address: (ref.uid, address) == ("p", "10.0.0.1"))
    wire.publish(table(row("a")))
    with pytest.raises(IndexError):
        wire.hello(**hello)

    (answer,) = wire.inbox[b"p"]
    assert isinstance(answer, Reject)
    assert answer.code is code
    assert wire.journal.of("joined") == []
    assert wire.journal.of("max_term") == ([(2,)] if "max_term" in hello else [])


@pytest.mark.parametrize(
    "hello", [{"uid": "impostor"}, {"proto_min": 2, "proto_max": 3}], ids=["uid", "protocol"]
)
def test_who_may_not_join_begins_no_term(hello) -> None:
    wire = Wire(check_peer=lambda ref, _: ref.uid == "p")
    with pytest.raises(IndexError):
        wire.hello(max_term=7, **hello)

    assert wire.journal.of("max_term") == []


def test_a_term_after_which_none_could_begin_is_not_believed() -> None:
    wire = Wire()
    for term in (2**61 + 1, 2**62):
        with pytest.raises(IndexError):
            wire.hello(max_term=term)
    assert wire.last(b"p", Reject).code is RejectCode.NOT_LEADER
    wire.hello()
    wire.say(b"p", Reject(RejectCode.STALE, max_term=2**62))
    assert wire.journal.of("max_term") == []

    with pytest.raises(IndexError):
        wire.hello(b"q", max_term=2**61)
    assert wire.journal.of("max_term") == [(2**61,)]


def test_a_proxy_of_an_older_and_newer_protocol_is_welcome() -> None:
    wire = Wire()

    wire.hello(proto_min=0, proto_max=7)

    assert wire.last(b"p", Welcome).proto == 1


def test_the_address_is_that_of_the_connection() -> None:
    seen = []

    def check(ref: ProxyRef, address: str | None) -> bool:
        seen.append((ref.uid, address))
        return True

    wire = Wire(check_peer=check)

    wire.say(b"p", wire_hello("p"), address="10.0.0.7")
    wire.say(b"q", wire_hello("q"), address=None)

    assert seen == [("p", "10.0.0.7"), ("q", None)]
