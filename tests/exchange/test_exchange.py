"""The life of one request, driven by hand."""

import json

import msgspec
import pytest

from steersman.engine import Trust
from steersman.settings import HoldSettings, PoolSettings
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import (
    Collect,
    Cut,
    Failure,
    Finish,
    Hold,
    Outcome,
    ReadBody,
    Relay,
    Respond,
    Send,
    Serve,
    StartAnswer,
)
from tests.exchange.support import World, error_of, header, row, table

JSON = [(b"Content-Type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


def answer(version: str) -> bytes:
    return json.dumps({"text": "x", "meta_info": {"weight_version": version}}).encode()


def sent(world: World, **headers: str) -> tuple[object, Send]:
    exchange = world.exchange(**headers)
    assert isinstance(exchange.start(), ReadBody)
    action = exchange.body([b"{}"])
    assert isinstance(action, Send)
    return exchange, action


def test_a_buffered_answer_is_stamped_by_the_engines_own_report() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange()
    exchange.start()
    exchange.body([b'{"text": "a"}'])

    assert isinstance(exchange.answer_head(200, JSON), Collect)
    assert isinstance(exchange.answer_data(answer("8")), Collect)
    start = exchange.answer_end()
    exchange.close()

    assert isinstance(start, StartAnswer)
    assert (start.end, start.body) == (True, [answer("8")])
    assert header(start.edit.add, "x-smg-routed-worker-id") == "http://e0:1"
    assert header(start.edit.add, "x-smg-weight-version") == "8"
    assert header(start.edit.add, "x-smg-mixed-version") == "true"
    assert world.engine("e0").version == "8"


def test_forged_stamps_of_an_engine_are_taken_out() -> None:
    world = World(row("e0", None), fleet_max=None)
    exchange = world.exchange("/v1/embeddings")
    exchange.start()
    exchange.body([b"{}"])

    start = exchange.answer_head(200, JSON)

    assert isinstance(start, StartAnswer)
    assert {b"x-smg-routed-worker-id", b"x-smg-weight-version", b"x-smg-mixed-version"} <= (
        start.edit.remove
    )
    assert header(start.edit.add, "x-smg-weight-version") is None


def test_an_unversioned_engine_is_never_stamped_default() -> None:
    world = World(row("e0", None), fleet_max=None)
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])
    exchange.answer_head(200, JSON)
    exchange.answer_data(answer("default"))

    start = exchange.answer_end()

    assert isinstance(start, StartAnswer)
    assert header(start.edit.add, "x-smg-weight-version") is None
    assert header(start.edit.add, "x-smg-routed-worker-id") == "http://e0:1"


def test_without_a_report_a_change_in_the_table_makes_the_answer_mixed() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange("/v1/chat/completions")
    exchange.start()
    exchange.body([b"{}"])
    exchange.answer_head(200, JSON)
    exchange.answer_data(b'{"choices": []}')
    world.apply(row("e0", "8"), fleet_max="8")

    start = exchange.answer_end()

    assert isinstance(start, StartAnswer)
    assert header(start.edit.add, "x-smg-weight-version") == "7"
    assert header(start.edit.add, "x-smg-mixed-version") == "true"


def test_a_late_report_does_not_undo_a_newer_table() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])
    exchange.answer_head(200, JSON)
    exchange.answer_data(answer("7"))
    world.apply(row("e0", "8"), fleet_max="8")

    exchange.answer_end()

    assert world.engine("e0").version == "8"


def test_an_answer_over_the_cap_goes_on_with_the_version_at_dispatch() -> None:
    world = World(row("e0", "7"), buffered_answer_cap=10)
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])
    assert isinstance(exchange.answer_head(200, JSON), Collect)
    assert isinstance(exchange.answer_data(b"12345"), Collect)

    start = exchange.answer_data(b"678901")

    assert isinstance(start, StartAnswer)
    assert start.body == [b"12345", b"678901"]
    assert header(start.edit.add, "x-smg-weight-version") == "7"
    assert exchange.answer_data(b"more") == Relay([b"more"])
    assert exchange.answer_end() == Finish()


def test_a_declared_length_over_the_cap_is_not_collected() -> None:
    world = World(row("e0", "7"), buffered_answer_cap=10)
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])

    assert isinstance(exchange.answer_head(200, [*JSON, (b"content-length", b"11")]), StartAnswer)


def test_an_encoded_answer_is_passed_on_unread() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])

    start = exchange.answer_head(200, [*JSON, (b"Content-Encoding", b"gzip")])

    assert isinstance(start, StartAnswer)
    assert header(start.edit.add, "x-smg-weight-version") == "7"


def test_a_stream_starts_at_once_and_a_change_corrects_the_table() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])

    start = exchange.answer_head(200, SSE)
    relay = exchange.answer_data(b"data: " + answer("8") + b"\n\n")
    exchange.answer_end()
    exchange.close()

    assert isinstance(start, StartAnswer)
    assert header(start.edit.add, "x-smg-weight-version") == "7"
    assert isinstance(relay, Relay)
    assert b": x-smg-weight-version: 8\n" in b"".join(relay.body)
    assert world.engine("e0").version == "8"
    assert world.fleet.pool("p").fleet_max == "7"  # type: ignore[union-attr]
    assert world.recorder.records[0].weight_version == "8"


def test_each_change_within_streams_corrects_the_table() -> None:
    """Two long streams see the same refits; the table that moved on by itself is left alone."""
    world = World(row("e0", "7"))
    streams = [world.exchange() for _ in range(2)]
    for exchange in streams:
        exchange.start()
        exchange.body([b"{}"])
        exchange.answer_head(200, SSE)
    first, second = streams

    def versions_after(exchange: Exchange, version: str) -> str | None:
        exchange.answer_data(b"data: " + answer(version) + b"\n\n")
        return world.engine("e0").version

    assert versions_after(first, "8") == "8"
    assert versions_after(first, "9") == "9"
    assert versions_after(second, "8") == "9"
    assert versions_after(second, "9") == "9"
    assert versions_after(second, "10") == "10"
    assert versions_after(first, "10") == "10"
    world.fleet.apply(table(row("e0", "12"), seq=2))
    assert versions_after(first, "11") == "12"


def test_a_stream_that_may_be_narrated_loses_its_length() -> None:
    world = World(row("e0", "7"))
    exchange = world.exchange()
    exchange.start()
    exchange.body([b"{}"])

    start = exchange.answer_head(200, [*SSE, (b"Content-Length", b"40")])

    assert isinstance(start, StartAnswer)
    assert b"content-length" in start.edit.remove


def test_a_restarted_engine_that_says_default_is_unsynced() -> None:
    world = World(row("e0", "7"), row("e1", "7"))
    for version in ("7", "default"):
        exchange = world.exchange(x_smg_target_worker="e0")
        exchange.start()
        exchange.body([b"{}"])
        exchange.answer_head(200, JSON)
        exchange.answer_data(answer(version))
        exchange.answer_end()
        exchange.close()

    assert world.engine("e0").trust is Trust.UNSYNCED
    assert {sent(world)[1].engine.id for _ in range(10)} == {"e1"}


def test_a_refused_connection_goes_to_another_engine_with_another_id() -> None:
    world = World(row("e0"), row("e1"), row("e2"), row("e3"))
    exchange, first = sent(world)
    ids = [header(first.edit.add, "x-request-id")]
    tried = [first.engine.id]

    for _ in range(2):
        action = exchange.attempt_failed(Failure.CONNECT_REFUSED)  # type: ignore[attr-defined]
        assert isinstance(action, Send)
        tried.append(action.engine.id)
        ids.append(header(action.edit.add, "x-request-id"))
    respond = exchange.attempt_failed(Failure.CONNECT_REFUSED)  # type: ignore[attr-defined]

    assert error_of(respond) == (502, "upstream_unreachable")
    assert len(set(tried)) == len(set(ids)) == 3
    assert world.in_flight == 0
    assert world.recorder.unreachable == tried


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure.CLOSED_BEFORE_ANSWER, 502),
        (Failure.PROTOCOL, 502),
        (Failure.HEAD_TIMEOUT, 504),
    ],
)
def test_what_an_engine_may_have_run_is_not_sent_again(failure: Failure, status: int) -> None:
    world = World(row("e0"), row("e1"))
    exchange, send = sent(world)

    respond = exchange.attempt_failed(failure, "why")  # type: ignore[attr-defined]

    assert error_of(respond)[0] == status
    assert isinstance(respond, Respond)
    assert header(respond.headers, "x-smg-routed-worker-id") == send.engine.url
    assert world.recorder.chosen == [send.engine.id]


def test_what_was_withheld_is_chosen_for_anew_and_counts_against_nobody() -> None:
    world = World(row("e0"), pool=PoolSettings(fence=True))
    exchange, _ = sent(world)
    assert exchange.may_start()  # type: ignore[attr-defined]
    world.fleet.set_control(True, until=world.clock.now() + 10)
    world.clock.advance(10)
    assert not exchange.may_start()  # type: ignore[attr-defined]

    world.fleet.set_control(True, until=world.clock.now() + 10)
    again = exchange.attempt_failed(Failure.WITHHELD)  # type: ignore[attr-defined]
    assert isinstance(again, Send) and again.engine.id == "e0"
    assert world.in_flight == 1
    world.clock.advance(10)
    respond = exchange.attempt_failed(Failure.WITHHELD)  # type: ignore[attr-defined]

    assert error_of(respond) == (503, "control_stale")
    assert world.in_flight == 0
    assert world.recorder.unreachable == []


def test_a_named_engine_is_the_only_one_tried() -> None:
    world = World(row("e0"), row("e1"))
    exchange, send = sent(world, x_smg_target_worker="http://e1:1/")
    assert send.engine.id == "e1"

    respond = exchange.attempt_failed(Failure.CONNECT_REFUSED)  # type: ignore[attr-defined]

    assert error_of(respond) == (502, "upstream_unreachable")


def test_an_engine_that_dies_within_a_stream_breaks_the_answer() -> None:
    world = World(row("e0"))
    exchange, _ = sent(world)
    exchange.answer_head(200, SSE)  # type: ignore[attr-defined]
    exchange.answer_data(b"data: x\n\n")  # type: ignore[attr-defined]

    assert exchange.answer_failed(Failure.INCOMPLETE) == Cut()  # type: ignore[attr-defined]
    exchange.close()  # type: ignore[attr-defined]

    assert world.recorder.records[0].outcome is Outcome.UPSTREAM_FAILED


def test_an_engine_that_dies_within_a_collected_answer_is_told() -> None:
    world = World(row("e0"))
    exchange, _ = sent(world)
    exchange.answer_head(200, JSON)  # type: ignore[attr-defined]
    exchange.answer_data(b'{"te')  # type: ignore[attr-defined]

    respond = exchange.answer_failed(Failure.INCOMPLETE)  # type: ignore[attr-defined]

    assert error_of(respond) == (502, "upstream_body_incomplete")


def test_a_request_is_held_while_its_engines_are_paused_and_goes_on_later() -> None:
    world = World(row("e0", paused=True), row("e1", open=False))
    exchange = world.exchange()
    exchange.start()
    hold = exchange.body([b"{}"])
    assert isinstance(hold, Hold)
    world.clock.advance(3.0)
    world.apply(row("e0"), row("e1", open=False))
    selected = world.fleet.select(hold.request)

    send = exchange.released(selected)  # type: ignore[arg-type]
    exchange.answer_head(200, SSE)
    exchange.answer_data(b"x")
    exchange.answer_end()
    exchange.close()

    assert send.engine.id == "e0"
    record = world.recorder.records[0]
    assert (record.held, record.outcome) == (3.0, Outcome.OK)
    # What the engine needed, not what the hold took.
    assert world.recorder.first_bytes == [0.0]


@pytest.mark.parametrize(
    "rows",
    [
        (row("e0", released=("weights",)),),
        (row("e1", None, trust=Trust.UNSYNCED),),
        (row("e0", failed=True), row("e1", trust=Trust.UNCERTAIN)),
    ],
)
def test_what_no_operation_will_end_is_503_at_once(rows: tuple[object, ...]) -> None:
    world = World(*rows)  # type: ignore[arg-type]
    exchange = world.exchange()
    exchange.start()

    respond = exchange.body([b"{}"])

    assert error_of(respond) == (503, "no_available_workers")
    assert isinstance(respond, Respond)
    assert header(respond.headers, "retry-after") == "1"
    assert world.recorder.nobody == 1


def test_with_hold_off_a_paused_fleet_is_503() -> None:
    world = World(row("e0", paused=True), pool=PoolSettings(hold=HoldSettings(timeout=0.0)))
    exchange = world.exchange()
    exchange.start()

    assert error_of(exchange.body([b"{}"])) == (503, "no_available_workers")


def test_no_table_yet_is_503() -> None:
    exchange = World().exchange()
    exchange.start()

    assert error_of(exchange.body([b"{}"])) == (503, "no_table")


def test_an_own_route_carries_its_engines_stamp() -> None:
    world = World(row("e0"))
    exchange = world.exchange("/model_info", "GET")
    exchange.start()
    assert isinstance(exchange.body([]), Serve)

    respond = exchange.served(200, (), b"{}", world.engine("e0"))

    assert header(respond.headers, "x-smg-routed-worker-id") == "http://e0:1"
    assert header(respond.headers, "x-smg-weight-version") == "7"


def test_rl_off_adds_the_worker_alone() -> None:
    world = World(row("e0", paused=True, open=False), rl_enabled=False)
    exchange = world.exchange()
    exchange.start()
    send = exchange.body([b"{}"])

    start = exchange.answer_head(200, JSON)

    assert isinstance(send, Send)
    assert (send.edit.add, send.edit.remove) == ((), frozenset())
    assert isinstance(start, StartAnswer)
    assert start.edit.add == ((b"x-smg-routed-worker-id", b"http://e0:1"),)
    assert start.edit.remove == frozenset({b"x-smg-routed-worker-id"})


def test_keys_of_ours_stop_here_and_the_engines_key_goes_on() -> None:
    world = World(row("e0"), api_keys=("k0",), engine_keys={"p": "k1"})

    _, send = sent(world, authorization="Bearer k0", x_api_key="theirs")

    assert send.edit.remove == frozenset({b"authorization", b"x-request-id"})
    assert header(send.edit.add, "Authorization") == "Bearer k1"


def test_a_clients_own_key_passes_where_the_proxy_has_none() -> None:
    _, send = sent(World(row("e0")), authorization="Bearer theirs")

    assert b"authorization" not in send.edit.remove


def test_a_clients_request_id_is_kept() -> None:
    _, send = sent(World(row("e0")), x_request_id="mine")

    assert header(send.edit.add, "x-request-id") is None


def test_explain_sends_nothing() -> None:
    world = World(row("e0"), row("e1", paused=True))
    exchange = world.exchange(x_steersman_explain="1")
    exchange.start()

    respond = exchange.body([b"{}"])
    exchange.close()

    assert isinstance(respond, Respond)
    explanation = msgspec.json.decode(respond.body)
    assert [engine["reason"] for engine in explanation["engines"]] == [None, "paused"]
    assert (world.in_flight, world.recorder.chosen) == (0, [])


def test_closing_twice_counts_once() -> None:
    world = World(row("e0"))
    exchange, _ = sent(world)
    assert world.in_flight == 1

    exchange.close(client_gone=True)  # type: ignore[attr-defined]
    exchange.close()  # type: ignore[attr-defined]

    assert world.in_flight == 0
    assert [record.outcome for record in world.recorder.records] == [Outcome.CLIENT_GONE]
