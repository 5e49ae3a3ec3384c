import json

import pytest

from steersman_sim.demo.records import Kind
from steersman_sim.demo.traffic import Mix, answer_fault, events_fault


def generate(reason: str | None) -> bytes:
    finish = None if reason is None else {"type": reason}
    return json.dumps({"text": "x", "meta_info": {"finish_reason": finish}}).encode()


def chat(reason: str | None) -> bytes:
    return json.dumps({"choices": [{"delta": {}, "finish_reason": reason}]}).encode()


def stream(*events: bytes) -> list[bytes]:
    return [line for event in events for line in (b"data: " + event, b"")]


def test_the_same_seed_draws_the_same_traffic():
    first, second, other = Mix(1), Mix(1), Mix(2)
    drawn = [(mix.gap(60.0), mix.draw(now=0.0)) for mix in (first, second)]
    assert drawn[0] == drawn[1]
    assert [first.draw(now=0.0) for _ in range(9)] != [other.draw(now=0.0) for _ in range(9)]


def test_the_traffic_is_mixed():
    mix = Mix(3)
    planned = [mix.draw(now=0.0) for _ in range(1000)]
    outcomes = [one.outcome for one in planned]
    assert {outcome.kind for outcome in outcomes} == set(Kind)
    assert 300 < sum(outcome.latest_only for outcome in outcomes) < 400
    assert 100 < sum(outcome.session is not None for outcome in outcomes) < 200
    for one in planned:
        assert ("x-smg-version-policy" in one.headers) is one.outcome.latest_only
        assert one.headers.get("x-smg-routing-key") == one.outcome.session
        assert bool(one.body.get("stream")) is (one.outcome.kind is not Kind.GENERATE)


def test_the_rate_is_kept_on_average():
    mix = Mix(1)
    assert sum(mix.gap(50.0) for _ in range(1000)) == pytest.approx(20.0, rel=0.05)


@pytest.mark.parametrize("body", [generate("length"), generate("stop"), chat("stop")])
def test_a_whole_answer_is_no_fault(body):
    assert answer_fault(body) is None
    assert events_fault(stream(generate(None), body, b"[DONE]")) is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"choices": []}', chat("abort")])
def test_a_broken_answer_is_a_fault(body):
    assert answer_fault(body) is not None


def test_an_aborted_answer_is_a_fault():
    assert answer_fault(generate("abort")) == "ended by abort"


def test_a_stream_may_end_with_a_count_of_tokens():
    usage = json.dumps({"choices": [], "usage": {}}).encode()
    assert events_fault(stream(chat(None), chat("length"), usage, b"[DONE]")) is None


@pytest.mark.parametrize(
    "lines",
    [
        [],
        stream(b"[DONE]"),
        stream(chat(None), chat("stop")),
        stream(chat(None), chat(None), b"[DONE]"),
        stream(chat(None), chat("abort"), b"[DONE]"),
    ],
)
def test_a_stream_that_ends_too_early_is_a_fault(lines):
    assert events_fault(lines) is not None
