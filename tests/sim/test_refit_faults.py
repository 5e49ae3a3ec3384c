"""What may go wrong with new weights, and what the engine really has afterwards."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from steersman_sim.engine import PRESETS, REFIT, EngineConfig, Fault, Runtime, When
from steersman_sim.engine.faults import Faults
from tests.sim.sglang_calls import frozen, pause, refit, version
from tests.sim.support import (
    CONNECTION_LOST,
    Client,
    Reply,
    chat_body,
    generate_body,
    running,
    serving,
    sglang,
    vllm,
)
from tests.sim.vllm_calls import label, reload_weights

BOTH = pytest.mark.parametrize("config", [sglang(), vllm()], ids=["sglang", "vllm"])


async def load(client: Client) -> Reply:
    """A refit to version 7 from disk, as far as it takes one call."""
    if client.engine.config.runtime is Runtime.SGLANG:
        return await refit(client)
    return await reload_weights(client)


def held(client: Client) -> list[tuple[str, str]]:
    """What each rank calls its weights, and where those that it really has are from."""
    return [(rank.weights.label, rank.weights.weights.source) for rank in client.engine.core.ranks]


async def answer(client: Client, rid: str = "a") -> tuple[str, Any]:
    """The text of an answer, and the versions that truly made it."""
    reply = await client.post("/v1/chat/completions", chat_body(rid=rid, tokens=6))
    assert reply.status == 200, reply.text
    (shown,) = [
        sequence
        for one in (await client.get("/_sim/answers")).json[-1:]
        for sequence in one["sequences"]
    ]
    text = reply.json["choices"][0]["message"]["content"]
    return text, [span["version"] for span in shown["truth"]]


# --- Half-way -------------------------------------------------------------------------------------


@BOTH
async def test_a_load_that_fails_half_way_leaves_garbage_under_the_old_label(
    config: EngineConfig,
) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, "half-way")
        reply = await load(client)
        assert (reply.status, reply.text) == (500, "Internal Server Error")
        assert held(client) == [("default", "half-written")]
        text, truth = await answer(client)
        assert text == "#?!#?!"
        assert truth == ["half-written"]


@BOTH
async def test_a_label_makes_no_weights_of_garbage_and_a_whole_load_does(
    config: EngineConfig,
) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, "half-way")
        await load(client)
        body = {"new_version": "7", "abort_all_requests": False}
        assert (await client.post("/update_weight_version", body)).status == 200
        assert await answer(client) == ("#?!#?!", ["half-written"])
        assert (await load(client)).status == 200
        text, truth = await answer(client, "b")
        assert "#" not in text
        assert truth != ["half-written"]


async def test_every_rank_is_half_written() -> None:
    async with serving(sglang(dp_size=2)) as client:
        client.engine.faults.arm(REFIT, "half-way")
        assert (await load(client)).status == 500
        assert held(client) == [("default", "half-written")] * 2


@BOTH
async def test_an_engine_that_hangs_half_way_generates_nothing_more(config: EngineConfig) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, "hang-midway")
        task = asyncio.create_task(load(client))
        rank = client.engine.core.ranks[0]
        await client.engine.until(lambda: rank.weights.weights.source == "half-written")
        assert rank.operating
        asking = client.soon("/v1/chat/completions", chat_body())
        await client.engine.until(lambda: len(client.engine.journal.entries) == 2)
        # Two round trips later the request has had its turn.
        await client.get("/version")
        await client.get("/version")
        assert (rank.operating, rank.scheduler.generated_tokens) == (True, 0)
        for one in (task, asking):
            one.cancel()


@BOTH
async def test_an_engine_may_die_half_way(config: EngineConfig) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, "die-midway")
        with pytest.raises(CONNECTION_LOST):
            await load(client)
        assert "in the middle" in await client.engine.wait_dead()
        await client.engine.start()
        assert held(client) == [("default", "launch:default")]


@BOTH
async def test_a_load_whose_connection_is_lost_goes_on(config: EngineConfig) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, Fault(when=When.MIDWAY, drop=True, times=1))
        with pytest.raises(CONNECTION_LOST):
            await load(client)
        rank = client.engine.core.ranks[0]
        await client.engine.until(lambda: rank.weights.weights.source == "disk:/w/7")


@BOTH
async def test_a_load_that_takes_its_time_half_way_ends_well(config: EngineConfig) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, Fault(when=When.MIDWAY, latency=0.01, times=1))
        assert (await load(client)).status == 200
        assert [source for _, source in held(client)] == ["disk:/w/7"]


# --- Lies -----------------------------------------------------------------------------------------


@BOTH
async def test_a_lie_about_everything(config: EngineConfig) -> None:
    async with serving(config) as client:
        client.engine.faults.arm(REFIT, "lie")
        reply = await load(client)
        assert reply.status == 200
        assert held(client) == [("default", "launch:default")]
        if config.runtime is Runtime.SGLANG:
            assert reply.json["success"] is True
            assert await version(client) == ("default", "default")


async def test_a_lie_about_the_weights() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, "lie-weights")
        assert (await refit(client)).json["success"] is True
        assert await version(client) == ("7", "7")
        assert held(client) == [("7", "launch:default")]
        _, truth = await answer(client)
        assert truth == ["default"]


async def test_a_lie_about_the_version() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, "lie-version")
        assert (await refit(client)).json["success"] is True
        assert await version(client) == ("default", "default")
        _, truth = await answer(client)
        assert truth == ["7"]


async def test_the_name_that_a_lie_is_given_is_a_lie_too() -> None:
    async with serving(vllm()) as client:
        client.engine.faults.arm(REFIT, "lie-weights")
        assert (await reload_weights(client)).json == {"results": [None]}
        await label(client, "7")
        assert held(client) == [("7", "launch:default")]
        assert (await answer(client))[1] == ["default"]
        assert (await reload_weights(client)).status == 200
        assert (await answer(client))[1] == [None], "nobody has named these yet"
        await label(client, "8")
        assert (await answer(client))[1] == ["8"]


async def test_the_checksum_sees_through_a_lie() -> None:
    async with serving(sglang()) as honest, serving(sglang()) as liar:
        liar.engine.faults.arm(REFIT, "lie-weights")
        sums = []
        for client in (honest, liar):
            assert (await refit(client)).status == 200
            reply = await client.post("/weights_checker", {"action": "checksum"})
            sums.append(reply.json["per_engine_checksum"])
        assert sums[0] != sums[1]


# --- Flushes and paths ----------------------------------------------------------------------------


async def test_a_flush_within_an_update_can_be_refused_of_an_idle_engine() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, "refuse-flush")
        reply = await refit(client)
        assert (reply.status, reply.json["success"]) == (400, False)
        assert await version(client) == ("default", "7")
        assert (await answer(client))[1] == ["7"]


async def test_a_flush_that_is_not_asked_for_is_not_refused() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, "refuse-flush")
        assert (await refit(client, flush_cache=False)).status == 200


async def test_a_path_where_nothing_is_changes_nothing_in_sglang() -> None:
    async with serving(sglang()) as client:
        reply = await refit(client, model_path="/missing/7")
        assert (reply.status, reply.json["success"]) == (400, False)
        assert reply.json["message"].startswith("Failed to get weights iterator")
        assert held(client) == [("default", "launch:default")]
        assert (await client.get("/model_info")).json["model_path"] == "sim-model"


async def test_a_path_where_nothing_is_spoils_the_weights_of_vllm() -> None:
    async with serving(vllm()) as client:
        reply = await reload_weights(client, "/missing/7")
        assert reply.status == 500
        assert "/missing/7" in reply.json["error"]["message"]
        assert held(client) == [("default", "half-written")]


# --- Which requests are struck --------------------------------------------------------------------


async def test_refit_means_whatever_loads_weights() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, Fault(status=418))
        for path in ("disk", "tensor", "distributed", "ipc"):
            assert (await client.post(f"/update_weights_from_{path}", {})).status == 418
        assert (await client.post("/flush_cache")).status == 200
        assert (await client.post("/update_weight_version", {"new_version": "7"})).status == 200
    async with serving(vllm()) as client:
        client.engine.faults.arm(REFIT, Fault(status=418))
        assert (await client.post("/update_weights", {})).status == 418
        assert (await reload_weights(client)).status == 418
        assert (await client.post("/collective_rpc", {"method": "check_health"})).status == 200


async def test_the_fault_of_a_path_goes_before_that_of_all_refits() -> None:
    async with serving(sglang()) as client:
        client.engine.faults.arm(REFIT, Fault(status=418))
        client.engine.faults.arm("/update_weights_from_disk", Fault(status=503, times=1))
        assert [(await refit(client)).status for _ in range(2)] == [503, 418]


async def test_a_trainers_transfer_is_struck_too() -> None:
    async with serving(vllm(weight_transfer="ipc")) as client:
        await client.post("/start_weight_update")
        client.engine.faults.arm(REFIT, "half-way")
        assert (await client.post("/update_weights", {"update_info": {}})).status == 500
        assert held(client) == [("default", "half-written")]


# --- Arming ---------------------------------------------------------------------------------------


async def test_faults_are_armed_by_name_over_http() -> None:
    async with serving(sglang()) as client:
        armed = await client.post("/_sim/faults", {"refit": ["die-midway", {"status": 503}]})
        assert armed.json == {
            "refit": [{"die": True, "times": 1, "when": "midway"}, {"status": 503}]
        }
        wrong = await client.post("/_sim/faults", {"refit": "nonsense"})
        assert wrong.status == 400
        assert "half-way" in wrong.json["error"], "it says which there are"
        assert (await client.post("/_sim/faults", {"refit": {"when": "midway"}})).status == 400


async def test_a_preset_is_not_used_up() -> None:
    async with serving(sglang()) as client:
        for _ in range(2):
            client.engine.faults.arm(REFIT, "half-way")
            assert (await refit(client)).status == 500
        assert (await refit(client)).status == 200
        assert PRESETS["half-way"].times == 1


@pytest.mark.parametrize(
    ("text", "armed"),
    [
        ("refit=lie", {"refit": [{"lie": "nothing", "times": 1}]}),
        ('/ping={"status":503}', {"/ping": [{"status": 503}]}),
    ],
)
def test_faults_are_armed_by_flags(text: str, armed: dict[str, Any]) -> None:
    faults = Faults()
    faults.arm_text(text)
    assert faults.to_json() == armed


@pytest.mark.parametrize("text", ["refit", "=lie", "refit=", "refit=nonsense", "refit={", "a={}x"])
def test_a_flag_without_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Faults().arm_text(text)


def test_the_command_refuses_a_fault_that_there_is_not() -> None:
    command = [sys.executable, "-m", "steersman.cli", "sim-engine", "--runtime", "sglang"]
    done = subprocess.run(
        [*command, "--fault", "refit=nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no fault is called 'nonsense'" in done.stderr


# --- What the engine really held ------------------------------------------------------------------


async def test_answers_are_told_with_the_weights_that_made_them() -> None:
    async with serving(sglang(manual=True)) as client:
        headers = {"X-Request-Id": "mine"}
        task = client.soon("/generate", generate_body(tokens=6, rid="a"), headers=headers)
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        assert (await client.get("/_sim/answers")).json == []
        await refit(client, flush_cache=False)
        await client.post("/continue_generation", {})
        await client.engine.step(5)
        assert (await task).status == 200
        (one,) = (await client.get("/_sim/answers")).json
        number = one.pop("number")
        assert one == {
            "boot": 1,
            "path": "/generate",
            "request_id": "mine",
            "status": 200,
            "complete": True,
            "sequences": [
                {
                    "rid": "a",
                    "finish": "length",
                    "truth": [
                        {"version": "default", "revision": 0, "start": 0, "end": 1},
                        {"version": "7", "revision": 1, "start": 1, "end": 6},
                    ],
                    "stamped": [
                        {"version": "default", "start": 0, "end": 1},
                        {"version": "7", "start": 1, "end": 6},
                    ],
                    "stale_cached_tokens": 0,
                }
            ],
        }
        assert (await client.get(f"/_sim/answers?since={number}")).json == []
