"""What becomes of the breaker, exchange by exchange."""

import pytest

from steersman.settings import BreakerSettings, PoolSettings, Timeouts
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.judging import of_failure, of_status
from steersman_proxy.exchange.messages import Cut, Failure, Hold, Outcome, Respond, Send
from steersman_proxy.load.breaker import BreakerState, Judgement
from tests.exchange.support import World, error_of, header, row

JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream")]
ONE_FAILURE = PoolSettings(breaker=BreakerSettings(failures=1, cooldown=30.0))


def sent(world: World, **headers: str) -> Exchange:
    exchange = world.exchange(**headers)
    exchange.start()
    action = exchange.body([b"{}"])
    assert isinstance(action, Send)
    return exchange


def state(world: World, name: str = "e0") -> BreakerState:
    return world.engine(name).breaker.state


@pytest.mark.parametrize(
    ("status", "judgement"),
    [
        (200, Judgement.SUCCESS),
        (204, Judgement.SUCCESS),
        (302, Judgement.SUCCESS),
        *((status, Judgement.SUCCESS) for status in (400, 401, 404, 408, 413, 422, 499)),
        (429, Judgement.NEUTRAL),
        (503, Judgement.NEUTRAL),
        *((status, Judgement.FAILURE) for status in (500, 501, 502, 504, 529, 599)),
    ],
)
def test_a_status_is_judged(status: int, judgement: Judgement) -> None:
    assert of_status(status) is judgement


def test_every_failure_is_judged_and_only_our_own_are_neutral() -> None:
    neutral = {failure for failure in Failure if of_failure(failure) is Judgement.NEUTRAL}
    assert neutral == {Failure.EXHAUSTED, Failure.WITHHELD}


def test_a_stream_is_judged_at_its_end() -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)
    exchange.answer_head(500, SSE)
    exchange.answer_data(b"data: x\n\n")
    assert state(world) is BreakerState.CLOSED

    exchange.answer_end()

    assert state(world) is BreakerState.OPEN
    exchange.close()
    assert world.in_flight == 0


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_that_breaks_is_a_failure_whatever_its_head_said(status: int) -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)
    exchange.answer_head(status, SSE)
    exchange.answer_failed(Failure.INCOMPLETE)
    exchange.close()
    assert state(world) is BreakerState.OPEN


def test_an_end_is_one_failure_whatever_follows_it() -> None:
    world = World(row("e0"), pool=PoolSettings(breaker=BreakerSettings(failures=2)))
    exchange = sent(world)
    exchange.answer_head(200, SSE)
    exchange.answer_failed(Failure.INCOMPLETE, "reset")
    exchange.answer_failed(Failure.INCOMPLETE, "reset once more, while closing")
    exchange.close(client_gone=True)
    exchange.close()
    assert world.engine("e0").breaker.failures == 1
    assert world.in_flight == 0


@pytest.mark.parametrize("when", ["before the head", "at an error's head", "within the answer"])
def test_a_client_that_leaves_says_nothing_of_the_engine(when: str) -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)
    if when != "before the head":
        exchange.answer_head(500, SSE)
    if when == "within the answer":
        exchange.answer_data(b"data: x\n\n")
    exchange.close(client_gone=True)
    assert state(world) is BreakerState.CLOSED
    assert world.engine("e0").breaker.outcomes[Judgement.NEUTRAL] == 1


def test_an_operator_that_cuts_says_nothing_of_the_engine() -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)
    exchange.cut("drain timeout")
    exchange.close()
    assert world.engine("e0").breaker.outcomes[Judgement.NEUTRAL] == 1


def test_the_engine_that_refused_is_judged_before_the_next_one_is_chosen() -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)

    action = exchange.attempt_failed(Failure.CONNECT_REFUSED)
    exchange.close()

    assert error_of(action) == (502, "upstream_unreachable")
    assert state(world) is BreakerState.OPEN
    later = world.exchange()
    later.start()
    refusal = later.body([b"{}"])
    assert error_of(refusal) == (503, "no_available_workers")
    assert isinstance(refusal, Respond)
    assert header(refusal.headers, "retry-after") == "30"
    later.close()


def test_what_was_withheld_frees_the_probe() -> None:
    world = World(row("e0"), pool=ONE_FAILURE)
    exchange = sent(world)
    exchange.attempt_failed(Failure.HEAD_TIMEOUT)
    exchange.close()
    world.clock.advance(30)
    probe = sent(world)
    assert world.engine("e0").breaker.probing

    assert isinstance(probe.attempt_failed(Failure.WITHHELD), Send)

    assert world.engine("e0").breaker.probing  # it is the probe again
    assert world.in_flight == 1
    probe.close(client_gone=True)
    assert not world.engine("e0").breaker.probing


def test_the_probe_is_not_counted_as_kept_from_the_engine_that_it_probes() -> None:
    world = World(row("e0"), row("e1"), pool=ONE_FAILURE)
    for name in ("e0", "e1"):
        exchange = sent(world, x_smg_target_worker=name)
        exchange.attempt_failed(Failure.HEAD_TIMEOUT)
        exchange.close()
    world.clock.advance(30)
    probes = [sent(world), sent(world)]
    assert world.recorder.filtered[-2:] == [{}, {"breaker_open": 1}]
    for probe in probes:
        probe.close()


# --- stale ----------------------------------------------------------------------------------------

STALE = PoolSettings(timeouts=Timeouts(stale=7200.0))


def test_a_request_is_stale_so_long_after_its_engine_was_chosen() -> None:
    world = World(row("e0", open=False), pool=STALE)
    exchange = world.exchange()
    exchange.start()
    hold = exchange.body([b"{}"])
    assert isinstance(hold, Hold)
    assert exchange.stale_at is None
    world.clock.advance(500)
    world.apply(row("e0"))
    selected = world.fleet.select(hold.request)
    exchange.released(selected)  # type: ignore[arg-type]

    assert exchange.stale_at == world.clock.now() + 7200

    exchange.close(client_gone=True)
    assert exchange.stale_at is None


@pytest.mark.parametrize("phase", ["sent", "collecting"])
def test_a_stale_request_of_which_nothing_was_sent_gets_504(phase: str) -> None:
    world = World(row("e0"), pool=STALE)
    exchange = sent(world)
    if phase == "collecting":
        exchange.answer_head(200, JSON)
    world.clock.advance(7200)

    reply = exchange.expire()

    assert error_of(reply) == (504, "request_stale")
    assert isinstance(reply, Respond)
    assert header(reply.headers, "x-smg-routed-worker-id") == "http://e0:1"
    assert world.in_flight == 0
    assert state(world) is BreakerState.CLOSED
    exchange.close()
    (record,) = world.recorder.records
    assert record.outcome is Outcome.UPSTREAM_FAILED


def test_a_stale_stream_is_broken_and_its_engine_told() -> None:
    world = World(row("e0"), pool=STALE, rid_header={"p": "x-rid"})
    exchange = sent(world)
    exchange.answer_head(200, SSE)
    world.clock.advance(7200)

    assert exchange.expire() == Cut()

    exchange.close()
    assert exchange.abandoned is not None
    assert exchange.abandoned[0].id == "e0"
    (record,) = world.recorder.records
    assert getattr(record.error, "code", None) == "request_stale"
