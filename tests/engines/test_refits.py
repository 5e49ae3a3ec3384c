"""New weights from disk: what an engine is asked, what it has afterwards, and what is said of it.

Whatever goes wrong, OK is said only of an engine that has the weights and shows their version, and
REFUSED only of one that has what it had.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from steersman.engine import Runtime
from steersman_operator.engines import FLUSH_SKIPPED
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import PauseMode, SourceKind, Weights
from steersman_sim.engine import PRESETS, REFIT, Fault
from tests.engines.support import (
    RUNTIMES,
    SEVEN,
    TIMEOUT,
    Steered,
    held,
    is_sglang,
    once,
    once_after,
    paused,
    released,
    steered,
)
from tests.sim.sglang_calls import refit, version
from tests.sim.support import running, serving, sglang, sglang_core, vllm
from tests.sim.vllm_calls import label, reload_weights

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)
MODES = pytest.mark.parametrize("mode", list(PauseMode))

DISK = "/update_weights_from_disk"
OLD = [("default", "launch:default")]
NEW = [("7", "disk:/w/7")]


def with_checksum(checksum: str) -> Weights:
    return msgspec.structs.replace(SEVEN, checksum=checksum)


async def checksum_of(runtime: Runtime, path: str = "/w/7") -> str:
    """What an engine of this kind computes of the weights at a path."""
    async with steered(runtime) as other:
        other.declared = runtime
        assert (await other.refit(msgspec.structs.replace(SEVEN, path=path))).ok
        found = await other.checksum()
        assert found is not None
        return found


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


# --- What may have happened -----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", sorted(PRESETS))
async def test_whatever_goes_wrong_too_much_is_never_claimed(runtime: Runtime, name: str) -> None:
    """Each fault, on an engine that nobody asks for a checksum."""
    async with steered(runtime) as it:
        await it.look()
        await it.pause()
        it.engine.faults.arm(REFIT, name)
        result = await it.refit(timeout=TIMEOUT)
        expected = {
            "half-way": Outcome.FAILED,
            "refuse-flush": Outcome.UNKNOWN,
            "lie": Outcome.FAILED,
            "lie-version": Outcome.FAILED,
            # Nothing but a checksum can tell.
            "lie-weights": Outcome.OK,
        }.get(name, Outcome.UNKNOWN)
        if runtime is Runtime.VLLM and name.startswith(("lie", "refuse")):
            # Its load and its label are two calls, and it has no flush of its own.
            expected = Outcome.OK
        assert result.outcome is expected, result
        assert result.detail or expected is Outcome.OK


@BOTH
async def test_half_written_weights_are_mended_by_a_whole_load(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        it.engine.faults.arm(REFIT, "half-way")
        assert (await it.refit()).outcome is Outcome.FAILED
        assert held(it.engine) == [("default", "half-written")]
        assert (await it.refit()).ok
        assert held(it.engine) == NEW


async def test_a_refused_flush_is_told_with_what_each_process_shows() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        it.engine.faults.arm(REFIT, "refuse-flush")
        result = await it.refit()
        assert (result.outcome, result.http) == (Outcome.UNKNOWN, 400)
        assert "it shows default, its schedulers stamp 7" in result.detail
        assert (await it.look()).version is None, "a look sees the old one"
        assert held(it.engine) == NEW
        assert (await it.refit()).ok
        assert await version(it) == ("7", "7")


async def test_a_path_where_nothing_is_leaves_vllm_unknown() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        result = await it.refit(msgspec.structs.replace(SEVEN, path="/missing/7"))
        assert (result.outcome, result.http) == (Outcome.FAILED, 500)
        assert "/missing/7" in result.detail
        assert held(it.engine) == [("default", "half-written")]


@pytest.mark.parametrize(
    "body",
    [
        {"success": False, "message": "no"},
        {"success": [True, False], "message": "rank 1"},
        {"success": [], "message": "?"},
        {"success": "true"},
        [{"success": True}, {"success": False}],
        [{"success": True}, "?"],
        [],
        None,
        "Succeeded",
    ],
)
async def test_a_200_without_success_has_failed(body: Any) -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        it.engine.faults.arm(DISK, once_after(status=200, body=body))
        assert (await it.refit()).outcome is Outcome.FAILED


@pytest.mark.parametrize("body", [{"success": [True, True]}, [{"success": True}] * 2])
async def test_the_success_of_several_ranks(body: Any) -> None:
    async with steered(Runtime.SGLANG, dp_size=2) as it:
        await it.pause()
        it.engine.faults.arm(DISK, once_after(status=200, body=body))
        assert (await it.refit()).ok


@pytest.mark.parametrize("body", [None, {"results": []}, {"results": None}, ""])
async def test_a_200_of_no_worker_has_failed(body: Any) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/collective_rpc", once(status=200, body=body))
        result = await it.refit()
        assert result.outcome is Outcome.FAILED
        assert it.paths() == ["/pause", "/collective_rpc"], "and it is not given a name"


async def test_one_rank_that_has_other_weights_is_seen() -> None:
    async with steered(Runtime.SGLANG, dp_size=2) as it:
        await refit(it, "6")
        await it.pause()
        body = {"success": True, "message": "Succeeded", "num_paused_requests": [0, 0]}
        it.engine.faults.arm(DISK, once(status=200, body=body))
        sglang_core(it).version = "7"
        await it.engine.core.ranks[0].change(version="7", hold=None)
        result = await it.refit()
        assert result.outcome is Outcome.FAILED
        assert "has schedulers that stamp 6" in result.detail


async def test_schedulers_that_show_the_launch_are_not_misjudged() -> None:
    """Whether this field is live was read in no source: an engine that keeps it is believed."""
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        info = (await it.get("/server_info")).json
        it.engine.faults.arm("/server_info", Fault(status=200, body=info))
        assert (await it.refit()).ok


@BOTH
async def test_an_engine_that_does_not_show_what_it_has_is_unknown(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.pause()
        for path in ("/model_info", "/get_model_info", "/weight_info"):
            it.engine.faults.arm(path, Fault(status=500))
        result = await it.refit()
        assert result.outcome is Outcome.UNKNOWN
        assert "does not s" in result.detail


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/update_weight_version"])
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ({"drop": True}, Outcome.UNKNOWN),
        ({"die": True}, Outcome.UNKNOWN),
        ({"status": 502}, Outcome.UNKNOWN),
        ({"status": 404}, Outcome.UNKNOWN),
        ({"status": 401}, Outcome.UNKNOWN),
        ({"status": 500}, Outcome.FAILED),
    ],
)
async def test_once_vllm_has_loaded_nothing_is_refused(
    path: str, fault: dict[str, Any], outcome: Outcome
) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm(path, once(**fault))
        result = await it.refit()
        if path == "/reset_prefix_cache" and "status" in fault:
            outcome = Outcome.OK  # with a cache that has old blocks
        assert result.outcome is outcome
        if outcome is not Outcome.OK:
            assert result.detail.startswith("the weights were loaded, but ")


async def test_an_engine_that_restarts_during_the_load_is_not_taken_for_the_loaded_one() -> None:
    """The read-back goes over the connection of the load, which ends with the process."""
    async with steered(Runtime.SGLANG) as it:
        boot = (await it.look()).boot_id
        await it.pause()
        it.engine.faults.arm("/model_info", once(hang=True))
        task = asyncio.create_task(it.refit(boot_id=boot))
        await it.engine.until(lambda: held(it.engine) == NEW)
        await it.engine.until(lambda: it.engine.journal.entries[-1].path == "/model_info")
        await it.engine.restart()
        await refit(it, "7")
        assert (await task).outcome is Outcome.UNKNOWN


# --- Checksums ------------------------------------------------------------------------------------


@BOTH
async def test_the_checksum_is_what_it_should_be(runtime: Runtime) -> None:
    wanted = await checksum_of(runtime)
    async with steered(runtime) as it:
        await it.pause()
        assert (await it.refit(with_checksum(wanted))).ok
        assert held(it.engine) == NEW


@BOTH
async def test_another_checksum_is_a_failure_that_names_both(runtime: Runtime) -> None:
    found = await checksum_of(runtime)
    async with steered(runtime) as it:
        await it.pause()
        result = await it.refit(with_checksum("cafe"))
        assert result.outcome is Outcome.FAILED
        assert found in result.detail
        assert "cafe" in result.detail


@BOTH
async def test_a_lie_about_the_weights_is_found_by_the_checksum(runtime: Runtime) -> None:
    wanted = await checksum_of(runtime)
    async with steered(runtime) as it:
        await it.pause()
        it.engine.faults.arm(REFIT, "lie-weights")
        assert (await it.refit(with_checksum(wanted))).outcome is Outcome.FAILED
        assert (await it.look()).version == "7", "which it shows all the same"


CHECKERS = {Runtime.SGLANG: "/weights_checker", Runtime.VLLM: "/weight_checker"}


@BOTH
async def test_an_engine_without_checksums_is_not_begun_with(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        it.engine.faults.arm(CHECKERS[runtime], Fault(status=404))
        result = await it.refit(with_checksum("cafe"))
        assert result.outcome is Outcome.REFUSED
        assert "checksum" in result.detail
        assert held(it.engine) == OLD
        assert not it.engine.journal.of(DISK)
        assert not it.engine.journal.of("/collective_rpc")


async def test_a_vllm_that_computes_none_while_paused_is_not_begun_with() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/weight_checker", Fault(status=409, body={"detail": "paused"}))
        result = await it.refit(with_checksum("cafe"))
        assert result.outcome is Outcome.REFUSED
        assert "while it is paused" in result.detail


@BOTH
async def test_whether_there_is_a_checksum_is_asked_without_computing_one(
    runtime: Runtime,
) -> None:
    wanted = await checksum_of(runtime)
    async with steered(runtime) as it:
        await it.pause()
        assert (await it.refit(with_checksum(wanted))).ok
        first, *rest = it.engine.journal.of(CHECKERS[runtime])
        assert first.status in (400, 405)
        assert [entry.json() for entry in rest] == [{"action": "checksum"}]


@BOTH
@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 200, "body": {}}, {"drop": True}])
async def test_a_checksum_that_is_not_told_leaves_it_unknown(
    runtime: Runtime, fault: dict[str, Any]
) -> None:
    async with steered(runtime) as it:
        await it.pause()
        it.engine.faults.arm(CHECKERS[runtime], once(status=405))
        it.engine.faults.arm(CHECKERS[runtime], Fault(**fault))
        assert (await it.refit(with_checksum("cafe"))).outcome is Outcome.UNKNOWN
        assert held(it.engine) == NEW


@BOTH
async def test_checksums_of_the_same_weights_are_equal(runtime: Runtime) -> None:
    assert await checksum_of(runtime) == await checksum_of(runtime)
    assert await checksum_of(runtime) != await checksum_of(runtime, "/w/8")


# --- Names ----------------------------------------------------------------------------------------


@BOTH
async def test_a_label_ends_no_request(runtime: Runtime) -> None:
    async with steered(runtime, manual=True) as it:
        task = it.ask(tokens=3)
        await running(it)
        result = await it.label("7")
        assert result.outcome is Outcome.OK
        assert FLUSH_SKIPPED in result.detail, "the request holds what was computed"
        await it.engine.step(2)
        reply = await task
        assert reply.status == 200
        (made,) = it.engine.journal.generations()
        assert made.finish.value == "length"
        if is_sglang(it.engine):
            (body,) = it.bodies("/update_weight_version")
            assert body == {"new_version": "7", "abort_all_requests": False}


@BOTH
async def test_a_label_empties_the_cache_of_an_engine_that_is_paused(runtime: Runtime) -> None:
    async with steered(runtime, block_size=4) as it:
        await it.ask()
        await it.pause()
        await (refit(it, None, flush_cache=False) if is_sglang(it.engine) else reload_weights(it))
        result = await it.label("7")
        assert (result.outcome, result.detail) == (Outcome.OK, "")
        assert held(it.engine) == NEW
        await it.resume()
        await it.ask()
        assert list(it.engine.journal.generations())[-1].cached_tokens == 0


@BOTH
async def test_a_name_that_is_shown_is_not_given_again(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await (refit(it, "7") if is_sglang(it.engine) else label(it, "7"))
        await it.pause()
        it.engine.faults.arm("/update_weight_version", Fault(status=404))
        it.engine.journal.clear()
        assert (await it.label("7")).ok
        flush = "/flush_cache" if is_sglang(it.engine) else "/reset_prefix_cache"
        assert it.paths() == [flush]


async def test_a_name_that_only_some_show_is_given_again() -> None:
    async with steered(Runtime.SGLANG) as it:
        await refit(it, "6")
        await it.pause()
        sglang_core(it).version = "7"
        assert (await it.label("7")).ok
        assert await version(it) == ("7", "7")


@BOTH
async def test_a_name_that_is_not_taken_has_failed(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        body = {"success": True, "new_version": "7"}
        it.engine.faults.arm("/update_weight_version", once(status=200, body=body))
        assert (await it.label("7")).outcome is Outcome.FAILED


async def test_a_name_that_sglang_does_not_want_has_failed() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        body = {"success": False, "message": "no"}
        it.engine.faults.arm("/update_weight_version", once(status=200, body=body))
        assert (await it.label("7")).outcome is Outcome.FAILED


@BOTH
async def test_a_name_that_cannot_be_read_back_is_unknown(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.pause()
        for path in ("/model_info", "/get_model_info", "/weight_info"):
            it.engine.faults.arm(path, Fault(status=500))
        assert (await it.label("7")).outcome is Outcome.UNKNOWN


@BOTH
async def test_an_engine_that_dies_of_the_flush_after_a_label_is_unknown(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        path = "/flush_cache" if is_sglang(it.engine) else "/reset_prefix_cache"
        it.engine.faults.arm(path, once(die=True))
        assert (await it.label("7")).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_older_names_of_the_version_are_tried(missing: int) -> None:
    names = ["/model_info", "/get_model_info", "/get_weight_version", "/weight_version"]
    async with steered(Runtime.SGLANG) as it:
        it.declared = Runtime.SGLANG
        for name in names[:missing]:
            it.engine.faults.arm(name, Fault(status=404))
        it.engine.faults.arm(names[missing], Fault(status=200, body={"weight_version": "7"}))
        await it.pause()
        assert (await it.refit()).ok


# --- A trainer's transfer -------------------------------------------------------------------------

GROUP = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
TENSORS = {"names": ["w"], "dtypes": ["bfloat16"], "shapes": [[1]], "flush_cache": False}


async def transfer(it: Steered, **more: Any) -> None:
    """What a trainer does between begin and commit."""
    if is_sglang(it.engine):
        await it.post("/init_weights_update_group", GROUP)
        reply = await it.post("/update_weights_from_distributed", TENSORS | more)
    else:
        reply = await it.post("/update_weights", {"update_info": {"names": ["w"]}})
    assert reply.status == 200, reply.text


@BOTH
async def test_a_transfer_is_framed(runtime: Runtime) -> None:
    async with steered(runtime, weight_transfer="ipc") as it:
        await it.pause()
        assert (await it.begin()).ok
        await transfer(it)
        assert (await it.commit("7")).ok
        (one,) = held(it.engine)
        assert one[0] == "7"
        assert one[1].startswith(("distributed:", "transfer:"))
        assert (await it.begin()).ok, "the session is over"


async def test_a_transfer_that_has_named_the_weights_is_not_named_again() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        assert (await it.begin()).ok
        await transfer(it, weight_version="7")
        assert (await it.commit("7")).ok
        assert not it.engine.journal.of("/update_weight_version")


@BOTH
async def test_frames_that_do_not_fit_are_not_ok(runtime: Runtime) -> None:
    async with steered(runtime, weight_transfer="ipc") as it:
        assert not (await it.commit("7")).ok
        assert held(it.engine) == OLD
        assert (await it.begin()).ok
        assert not (await it.begin()).ok


async def test_an_sglang_without_sessions_needs_none() -> None:
    async with steered(Runtime.SGLANG) as it:
        for path in ("/begin_weight_update", "/end_weight_update"):
            it.engine.faults.arm(path, Fault(status=404))
        await it.pause()
        assert (await it.begin()).ok
        assert (await it.commit("7")).ok
        assert await version(it) == ("7", "7")


async def test_a_commit_whose_label_is_refused_is_unknown() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        await it.begin()
        it.engine.faults.arm("/update_weight_version", once(status=400))
        result = await it.commit("7")
        assert result.outcome is Outcome.UNKNOWN
        assert result.detail.startswith("the transfer was ended, but ")


@BOTH
async def test_a_dialect_can_be_asked_for_its_checksum_and_cache(runtime: Runtime) -> None:
    async with serving(sglang() if runtime is Runtime.SGLANG else vllm()) as client:
        it = Steered(client.engine, client.session)
        it.declared = runtime
        first = await it.checksum()
        assert first is not None
        assert (await it.invalidate()).ok
        await (refit(it) if runtime is Runtime.SGLANG else reload_weights(it))
        assert await it.checksum() not in (None, first)
