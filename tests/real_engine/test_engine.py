"""What the rest of these tests, and the sim engine, take for granted of vLLM."""

import pytest

from tests.real_engine.conftest import PROMPT, Checkpoints
from tests.real_engine.engines import RealEngine

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

LONG = PROMPT * 12
"""Several blocks of the cache."""


def test_both_engines_continue_a_text_in_the_same_way(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    assert [engine.greedy(PROMPT) for engine in engines] == [checkpoints.first.text] * 2


def test_which_memory_is_awake_cannot_be_asked(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """Why a partial wake is remembered: no route tells it from a whole sleep."""
    engine = engines[0]
    engine.good("POST", "/pause?mode=abort&clear_cache=true")
    assert (engine.paused, engine.sleeping, engine.sleep_state) == (True, True, "awake")
    engine.good("POST", "/sleep?level=1&mode=abort")
    asleep = (engine.paused, engine.sleeping, engine.sleep_state)
    assert asleep == (True, True, "weights_offloaded")

    answer = engine.good("POST", "/wake_up?tags=weights")
    assert answer == {"status": "sleeping", "tags": ["weights"]}
    assert (engine.paused, engine.sleeping, engine.sleep_state) == asleep
    # Of several tags one of which is awake, none is woken.
    answer = engine.good("POST", "/wake_up?tags=weights&tags=kv_cache")
    assert answer["status"] == "sleeping"

    engine.load(checkpoints.second.path)
    assert engine.good("POST", "/wake_up?tags=kv_cache")["status"] == "awake"
    assert (engine.paused, engine.sleeping, engine.sleep_state) == (False, False, "awake")
    assert engine.greedy(PROMPT) == checkpoints.second.text


def test_waking_what_is_only_paused_lets_it_go_on(engines: list[RealEngine]) -> None:
    engine = engines[0]
    engine.good("POST", "/pause?mode=abort&clear_cache=true")
    engine.good("POST", "/wake_up?tags=kv_cache")
    assert not engine.paused


def test_sleep_level_0_is_none_of_the_states(engines: list[RealEngine]) -> None:
    engine = engines[0]
    engine.good("POST", "/sleep?level=0")
    assert (engine.paused, engine.sleeping, engine.sleep_state) == (True, True, None)


def test_new_weights_leave_name_and_cache_as_they_are(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """Why a refit empties the cache: what is cached was computed with the old weights."""
    one, other = engines
    other.load(checkpoints.second.path)
    right = other.greedy(LONG)

    one.greedy(LONG)
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoints.second.path)}}
    one.good("POST", "/collective_rpc", body)
    assert one.version == "1"
    assert one.greedy(LONG) != right
    one.good("POST", "/reset_prefix_cache")
    assert one.greedy(LONG) == right


@pytest.mark.parametrize("bad", ["empty", "missing"])
def test_a_load_that_fails_has_given_the_weights_up_already(
    engines: list[RealEngine], checkpoints: Checkpoints, bad: str
) -> None:
    """Why no failure of a refit counts as harmless, not even that of a path with a typing error."""
    engine = engines[0]
    path = checkpoints.empty if bad == "empty" else checkpoints.empty / "nowhere"
    engine.good("POST", "/pause?mode=abort&clear_cache=true")
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    assert engine.call("POST", "/collective_rpc", body)[0] == 500
    assert engine.version == "1"
    status, answer = engine.call("POST", "/weight_checker", {"action": "checksum"})
    assert status == 500 and "meta tensor" in answer["error"]["message"]

    engine.load(checkpoints.second.path)
    engine.good("POST", "/resume")
    assert engine.greedy(PROMPT) == checkpoints.second.text


def test_a_checkpoint_with_a_part_missing_is_loaded_without_a_word(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """Why a checksum can be worth its time."""
    engine = engines[0]
    engine.load(checkpoints.half)
    assert engine.greedy(PROMPT) not in (checkpoints.first.text, checkpoints.second.text)
