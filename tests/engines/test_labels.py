"""Names for weights that a trainer has transferred, and the frame of its transfer."""

from typing import Any

import pytest

from steersman.engine import Runtime
from steersman_operator.engines import FLUSH_SKIPPED
from steersman_operator.fleet.facts import Outcome
from steersman_sim.engine import Fault
from tests.engines.support import (
    RUNTIMES,
    Steered,
    held,
    is_sglang,
    once,
    steered,
)
from tests.sim.sglang_calls import refit, version
from tests.sim.support import running, serving, sglang, sglang_core, vllm
from tests.sim.vllm_calls import label, reload_weights

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)

OLD = [("default", "launch:default")]
NEW = [("7", "disk:/w/7")]


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
