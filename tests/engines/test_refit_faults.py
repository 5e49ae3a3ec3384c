"""Loads of weights that go wrong, lie, or are not believed: what is said of the engine afterwards."""

import asyncio
from typing import Any

import msgspec
import pytest

from steersman.engine import Runtime
from steersman_operator.fleet.facts import Outcome
from steersman_operator.fleet.spec import Weights
from steersman_sim.engine import PRESETS, REFIT, Fault
from tests.engines.support import (
    RUNTIMES,
    SEVEN,
    TIMEOUT,
    held,
    once,
    once_after,
    steered,
)
from tests.sim.sglang_calls import refit, version
from tests.sim.support import sglang_core

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)

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
