"""New weights from disk: what an engine is asked, what it has afterwards, and what is said of it.

Whatever goes wrong, OK is said only of an engine that has the weights and shows their version, and
REFUSED only of one that has what it had.
"""

from typing import Any

import msgspec
import pytest

from steersman.engine import Runtime
from steersman_operator.engines import FLUSH_SKIPPED
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import PauseMode, SourceKind, Weights
from steersman_sim.engine import Fault
from tests.engines.support import (
    RUNTIMES,
    SEVEN,
    TIMEOUT,
    held,
    once,
    paused,
    released,
    steered,
)
from tests.sim.sglang_calls import version
from tests.sim.support import running

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)
MODES = pytest.mark.parametrize("mode", list(PauseMode))

DISK = "/update_weights_from_disk"
OLD = [("default", "launch:default")]
NEW = [("7", "disk:/w/7")]


# --- What is done ---------------------------------------------------------------------------------


@BOTH
@MODES
async def test_an_engine_that_is_paused_gets_its_weights(runtime: Runtime, mode: PauseMode) -> None:
    async with steered(runtime) as it:
        await it.pause(mode)
        result = await it.refit(mode=mode)
        assert (result.outcome, result.detail) == (Outcome.OK, "")
        assert held(it.engine) == NEW
        assert paused(it.engine)
        assert (await it.look()).version == "7"
        await it.resume()
        assert (await it.ask()).status == 200


@MODES
async def test_what_sglang_is_asked(mode: PauseMode) -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause(mode)
        it.engine.journal.clear()
        assert (await it.refit(mode=mode)).ok
        assert it.paths() == ["/flush_cache", DISK]
        assert [entry.query for entry in it.engine.journal.of("/flush_cache")] == ["timeout=0"]
        assert it.bodies(DISK) == [
            {
                "model_path": "/w/7",
                "weight_version": "7",
                "abort_all_requests": False,
                "flush_cache": mode is PauseMode.ABORT,
            }
        ]


@MODES
async def test_what_vllm_is_asked(mode: PauseMode) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause(mode)
        it.engine.journal.clear()
        assert (await it.refit(mode=mode)).ok
        assert it.paths() == ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version"]
        assert it.bodies("/collective_rpc") == [
            {"method": "reload_weights", "kwargs": {"weights_path": "/w/7"}}
        ]
        (reset,) = it.engine.journal.of("/reset_prefix_cache")
        preempts = mode is not PauseMode.KEEP
        assert reset.query == f"reset_running_requests={str(preempts).lower()}"
        assert it.bodies("/update_weight_version") == [{"new_version": "7"}]


@BOTH
async def test_the_same_weights_can_be_loaded_once_more(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        for nonce in ("", "again"):
            assert (await it.refit(msgspec.structs.replace(SEVEN, nonce=nonce))).ok
        assert it.engine.core.ranks[0].weights.weights.revision == 2
        assert held(it.engine) == NEW


@BOTH
async def test_the_cache_of_the_old_weights_is_gone(runtime: Runtime) -> None:
    async with steered(runtime, block_size=4) as it:
        assert (await it.ask()).status == 200
        await it.pause()
        assert (await it.refit()).ok
        await it.resume()
        assert (await it.ask()).status == 200
        last = list(it.engine.journal.generations())[-1]
        assert (last.cached_tokens, last.stale_cached_tokens) == (0, 0)


@BOTH
async def test_all_ranks_get_them(runtime: Runtime) -> None:
    async with steered(runtime, dp_size=3) as it:
        await it.pause()
        assert (await it.refit()).ok
        assert held(it.engine) == NEW * 3


async def test_the_name_of_the_served_model_is_not_what_counts() -> None:
    """SGLang renames it to the path; neither the next refit nor a look minds."""
    async with steered(Runtime.SGLANG, model="qwen") as it:
        await it.pause()
        assert (await it.refit()).ok
        assert (await it.get("/v1/models")).json["data"][0]["id"] == "/w/7"
        eight = Weights(version="8", source=SourceKind.DISK, path="/w/8")
        assert (await it.refit(eight)).ok
        assert (await it.look()).version == "8"


@BOTH
async def test_an_engine_that_is_still_half_asleep(runtime: Runtime) -> None:
    """Weights are woken, loaded, and only then does it get its KV memory back."""
    async with steered(runtime) as it:
        await it.pause()
        assert (await it.sleep()).ok
        assert (await it.wake(tags=("weights",))).ok
        assert released(it.engine) == {"kv_cache"}
        assert (await it.refit()).ok
        assert released(it.engine) == {"kv_cache"}
        assert (await it.wake(tags=("kv_cache",))).ok
        assert (await it.resume()).ok
        assert held(it.engine) == NEW
        assert (await it.ask()).status == 200
        assert it.engine.died is None


# --- Caches that cannot be emptied ----------------------------------------------------------------


@BOTH
async def test_requests_frozen_in_place_keep_what_was_computed(runtime: Runtime) -> None:
    async with steered(runtime, manual=True) as it:
        task = it.ask(tokens=4)
        await running(it)
        await it.pause(PauseMode.KEEP)
        result = await it.refit(mode=PauseMode.KEEP)
        assert result.outcome is Outcome.OK
        assert FLUSH_SKIPPED in result.detail
        assert held(it.engine) == NEW
        await it.resume()
        await it.engine.step(3)
        assert (await task).status == 200
        (made,) = it.engine.journal.generations()
        assert [span.version for span in made.truth] == ["default", "7"]


async def test_sglang_is_not_told_to_flush_where_it_would_refuse() -> None:
    """A refusal within the update is answered 400, with the weights changed."""
    async with steered(Runtime.SGLANG, manual=True) as it:
        task = it.ask(tokens=4)
        await running(it)
        await it.pause(PauseMode.KEEP)
        await it.refit(mode=PauseMode.ABORT)
        assert [body["flush_cache"] for body in it.bodies(DISK)] == [False]
        assert await version(it) == ("7", "7")
        task.cancel()


async def test_an_engine_that_never_flushes_after_a_retract_is_refitted_all_the_same() -> None:
    """field-failures 5: the flush is refused for ever, and an update that asks for one kills."""
    async with steered(Runtime.SGLANG) as it:
        await it.pause(PauseMode.RECOMPUTE)
        it.engine.faults.arm("/flush_cache", Fault(status=400, body="pending requests"))
        result = await it.refit(mode=PauseMode.RECOMPUTE)
        assert result.outcome is Outcome.OK
        assert FLUSH_SKIPPED in result.detail
        assert "pending requests" in result.detail
        assert len(it.engine.journal.of("/flush_cache")) == 5
        (body,) = it.bodies(DISK)
        assert body["flush_cache"] is False
        assert held(it.engine) == NEW
        assert (await it.resume()).ok
        assert it.engine.died is None


async def test_a_flush_that_comes_too_early_is_tried_again() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause(PauseMode.RECOMPUTE)
        it.engine.faults.arm("/flush_cache", Fault(status=400, body="no", times=2))
        result = await it.refit(mode=PauseMode.RECOMPUTE)
        assert (result.outcome, result.detail) == (Outcome.OK, "")
        assert len(it.engine.journal.of("/flush_cache")) == 3


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 404}, {"status": 200, "body": "?"}])
async def test_a_cache_of_vllm_that_nobody_empties_is_told(fault: dict[str, Any]) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/reset_prefix_cache", Fault(**fault))
        result = await it.refit()
        assert result.outcome is Outcome.OK
        assert FLUSH_SKIPPED in result.detail
        assert held(it.engine) == NEW


async def test_vllm_is_asked_for_an_empty_cache_a_few_times() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        busy = Fault(status=200, body={"success": False}, times=2)
        it.engine.faults.arm("/reset_prefix_cache", busy)
        result = await it.refit()
        assert (result.outcome, result.detail) == (Outcome.OK, "")
        it.engine.faults.arm("/reset_prefix_cache", Fault(status=200, body={"success": False}))
        it.engine.journal.clear()
        assert FLUSH_SKIPPED in (await it.refit()).detail
        assert len(it.engine.journal.of("/reset_prefix_cache")) == 5


# --- Nothing was changed --------------------------------------------------------------------------


async def test_a_path_where_nothing_is_changes_nothing_in_sglang() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        result = await it.refit(msgspec.structs.replace(SEVEN, path="/missing/7"))
        assert (result.outcome, result.http) == (Outcome.REFUSED, 400)
        assert "/missing/7" in result.detail
        assert held(it.engine) == OLD


@pytest.mark.parametrize(
    "spoilt",
    [
        {"nnodes": 2},
        {},
    ],
    ids=["several nodes", "nobody knows"],
)
async def test_what_one_node_does_not_find_another_may(spoilt: dict[str, Any]) -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        for path in ("/server_info", "/get_server_info"):
            it.engine.faults.arm(path, Fault(status=200, body=spoilt))
        result = await it.refit(msgspec.structs.replace(SEVEN, path="/missing/7"))
        assert result.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("Failed to get weights iterator: a | Failed to get weights iterator: b", Outcome.REFUSED),
        ("Failed to get weights iterator: a | Succeeded to update model weights.", Outcome.UNKNOWN),
        ("Failed to update weights: x. Rolling back to original weights.", Outcome.UNKNOWN),
        ("", Outcome.UNKNOWN),
        (None, Outcome.UNKNOWN),
    ],
)
async def test_only_ranks_that_have_all_found_nothing_have_changed_nothing(
    message: str | None, outcome: Outcome
) -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        body = {"success": False, "message": message, "num_paused_requests": [0, 0]}
        it.engine.faults.arm(DISK, once(status=400, body=body))
        assert (await it.refit()).outcome is outcome


async def test_a_body_that_was_not_understood_changes_nothing() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        body = {"object": "error", "message": "bad", "type": "Bad Request", "code": 400}
        it.engine.faults.arm(DISK, once(status=400, body=body))
        assert (await it.refit()).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    "message",
    [
        "GPUModelRunner.reload_weights() got an unexpected keyword argument 'weights_path'",
        "'CPUWorker' object has no attribute 'reload_weights'",
        "Model reloading with `dummy` format",
    ],
)
async def test_a_vllm_that_cannot_load_from_a_path_has_not_begun(message: str) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        error = {"message": f"Call to collective_rpc method failed: {message}", "type": "x"}
        it.engine.faults.arm("/collective_rpc", once(status=500, body={"error": error}))
        result = await it.refit()
        assert result.outcome is Outcome.REFUSED
        assert "cannot read weights from a path" in result.detail
        assert it.paths() == ["/pause", "/collective_rpc"]


async def test_a_vllm_without_versions_is_not_begun_with() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/weight_info", Fault(status=404))
        result = await it.refit()
        assert result.outcome is Outcome.REFUSED
        assert "cannot name its weights" in result.detail
        assert it.paths() == ["/pause"]


async def test_a_vllm_without_control_routes_is_not_begun_with() -> None:
    async with steered(Runtime.VLLM, dev_mode=False) as it:
        for result in (await it.refit(), await it.label()):
            assert result.outcome is Outcome.REFUSED
            assert "VLLM_SERVER_DEV_MODE=1" in result.detail


@BOTH
async def test_weights_without_a_path_are_not_loaded(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        before = it.paths()
        result = await it.refit(Weights(version="7", source=SourceKind.EXTERNAL))
        assert result.outcome is Outcome.REFUSED
        assert "no path" in result.detail
        assert it.paths() == before


@BOTH
async def test_no_weights_and_transfers_are_refused(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        assert (await it.do(CallKind.TRANSFER)).outcome is Outcome.REFUSED
        assert it.paths() == []


@BOTH
async def test_an_engine_that_is_stuck_is_left_alone(runtime: Runtime) -> None:
    """One that does not answer the first question is not asked to load."""
    async with steered(runtime) as it:
        it.declared = runtime
        await it.look()
        await it.pause()
        path = "/flush_cache" if runtime is Runtime.SGLANG else "/weight_info"
        it.engine.faults.arm(path, Fault(hang=True))
        result = await it.refit(timeout=TIMEOUT)
        assert result.outcome is Outcome.REFUSED
        assert held(it.engine) == OLD
        assert not it.engine.journal.of(DISK)


@BOTH
async def test_an_engine_that_dies_before_it_is_asked_to_load(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.pause()
        path = "/flush_cache" if runtime is Runtime.SGLANG else "/weight_info"
        it.engine.faults.arm(path, once(die=True))
        assert (await it.refit()).outcome is Outcome.REFUSED
