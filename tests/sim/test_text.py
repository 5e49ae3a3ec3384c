"""Tokens, generated text, spans and the chat template: all pure functions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_sim.engine.chat import completion_prompts, content_text, render_chat
from steersman_sim.engine.generation import (
    answer_key,
    logprob_at,
    natural_length,
    prompt_digest,
    token_at,
)
from steersman_sim.engine.sampling import copies, limit, parse_sampling
from steersman_sim.engine.spans import Marks, stamped_spans, true_spans
from steersman_sim.engine.tokens import EOS, decode, encode
from steersman_sim.engine.weights import LoadedWeights, RankWeights, Stamp

WEIGHTS = LoadedWeights(0, source="launch", version="7")


@given(st.text())
def test_text_survives_both_ways(text: str) -> None:
    assert decode(encode(text)) == text


def test_other_ids_are_written_out_and_eos_is_silent() -> None:
    assert decode([104, 105, EOS, 5000]) == "hi<|5000|>"


@given(st.binary(max_size=20), st.integers(0, 9), st.integers(0, 500))
def test_a_token_depends_on_key_and_position_alone(raw: bytes, seed: int, position: int) -> None:
    key = answer_key(prompt_digest(list(raw)), seed=seed, nonce=0, weights=WEIGHTS)
    again = answer_key(prompt_digest(list(raw)), seed=seed, nonce=0, weights=WEIGHTS)
    assert token_at(key, position) == token_at(again, position)
    assert 0 <= token_at(key, position) < 256
    assert logprob_at(key, position) < 0
    assert natural_length(key, mean=50) >= 1


def test_other_weights_say_something_else() -> None:
    digest = prompt_digest(encode("hello"))
    other = LoadedWeights(1, source="disk:/8", version="8")
    keys = {answer_key(digest, seed=0, nonce=0, weights=w) for w in (WEIGHTS, other)}
    assert len(keys) == 2


def test_equal_versions_say_the_same_wherever_they_came_from() -> None:
    digest = prompt_digest(encode("hello"))
    other = LoadedWeights(5, source="disk:/7", version="7")
    keys = {answer_key(digest, seed=0, nonce=0, weights=w) for w in (WEIGHTS, other)}
    assert len(keys) == 1


def test_the_natural_length_has_the_wanted_mean() -> None:
    lengths = [natural_length(key * 7919, mean=100) for key in range(4000)]
    assert 93 < sum(lengths) / len(lengths) < 107


def test_prompts_of_large_ids_have_a_digest_of_their_own() -> None:
    assert prompt_digest([300, 1]) != prompt_digest([300, 2])


# --- Weights -------------------------------------------------------------------------------------


def test_a_load_without_a_version_keeps_the_label() -> None:
    weights = RankWeights(label="1")
    weights.load("disk:/2", version=None)
    assert (weights.label, weights.weights.version, weights.weights.revision) == ("1", None, 1)


def test_the_first_label_after_a_load_names_the_weights_also_backwards() -> None:
    weights = RankWeights(label="1")
    weights.load("disk:/2", version=None)
    made_before = weights.weights
    weights.relabel("2")
    assert made_before.version == "2"
    assert weights.label == "2"


def test_a_mere_label_leaves_earlier_tokens_with_the_earlier_name() -> None:
    weights = RankWeights(label="1")
    made_before = weights.weights
    weights.relabel("2")
    assert made_before.version == "1"
    assert (weights.weights.version, weights.weights.revision) == ("2", 0)


def test_discarded_weights_are_undefined_whatever_the_label_says() -> None:
    weights = RankWeights(label="1")
    weights.discard()
    assert (weights.label, weights.weights.version) == ("1", "undefined")


def test_the_checksum_is_that_of_the_source() -> None:
    one, other = RankWeights(label="a"), RankWeights(label="b")
    assert one.weights.checksum() != other.weights.checksum()
    for weights in (one, other):
        weights.load("disk:/7", version="7")
    assert one.weights.checksum() == other.weights.checksum()


# --- Spans ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.sampled_from("xy"))),
    st.integers(0, 5),
)
def test_spans_partition_the_output(pieces: list[tuple[int, str, str]], last: int) -> None:
    marks: Marks = []
    position = 0
    for size, label, version in pieces:
        stamp = Stamp(label, LoadedWeights(0, source=version, version=version))
        marks.append((position, stamp))
        position += size
    length = position + last if marks else 0
    for spans in (
        stamped_spans(marks, length=length),
        true_spans(marks, length=length),
    ):
        assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
        assert all(span.start < span.end for span in spans)
        assert (spans[-1].end if spans else 0) == length
        neighbours = [span.version for span in spans]
        assert all(a != b for a, b in pairwise(neighbours))


# --- Prompts -------------------------------------------------------------------------------------


def test_a_longer_conversation_starts_with_the_shorter_one() -> None:
    first = [{"role": "user", "content": "a"}]
    more = [*first, {"role": "assistant", "content": "b"}]
    short = render_chat(first, generate=False)
    assert render_chat(more)[: len(short)] == short


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "image_url", "image_url": {}}]
    assert content_text(parts) == "ab<|image_url|>"
    assert content_text(None) == ""


@pytest.mark.parametrize("messages", [None, [], "x", ["x"], [{"content": "x"}], [{"role": 1}]])
def test_messages_without_shape_are_refused(messages: object) -> None:
    with pytest.raises(ValueError, match="message"):
        render_chat(messages)


@pytest.mark.parametrize("content", [1, [1], [{"text": 1}]])
def test_content_without_shape_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match="content"):
        content_text(content)


def test_prompts_take_four_shapes() -> None:
    assert completion_prompts("a") == [[97]]
    assert completion_prompts(["a", "b"]) == [[97], [98]]
    assert completion_prompts([1, 2]) == [[1, 2]]
    assert completion_prompts([[1], [2]]) == [[1], [2]]


@pytest.mark.parametrize("prompt", [None, [], [[]], [1, "a"], [[1.5]], {}])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(ValueError, match="prompt"):
        completion_prompts(prompt)


# --- Sampling parameters -------------------------------------------------------------------------


def test_sampling_reads_what_changes_the_answer() -> None:
    values = {"temperature": 0, "stop": "x", "stop_token_ids": [5], "seed": 3, "ignore_eos": True}
    sampling = parse_sampling(values, max_tokens=4, min_tokens=2, seed_name="seed")
    assert sampling.greedy
    assert sampling.ignore_eos
    assert (sampling.stop, sampling.stop_token_ids) == (("x",), frozenset({5}))
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (3, 4, 2)


@pytest.mark.parametrize(
    "values",
    [{"temperature": -1}, {"temperature": "hot"}, {"stop": 3}, {"stop_token_ids": ["a"]}],
)
def test_wrong_sampling_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"temperature|stop"):
        parse_sampling(values, max_tokens=1, min_tokens=0, seed_name="seed")


def test_limits_and_copies() -> None:
    assert limit({"max_tokens": 3}, "max_completion_tokens", "max_tokens", default=9) == 3
    assert limit({}, "max_tokens", default=9) == 9
    assert copies({"n": 2}) == 2
    with pytest.raises(ValueError, match="n must be at least 1"):
        copies({"n": 0})
    with pytest.raises(ValueError, match="integer"):
        limit({"max_tokens": "3"}, "max_tokens", default=9)
