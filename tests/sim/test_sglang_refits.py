"""What SGLang does when it sleeps, is refitted and starts again: each surprise by name.

Engines run in manual mode where the moment matters: no step is taken unless the test takes it.
"""

import asyncio

import pytest

from steersman_sim.engine import Timings
from tests.sim.sglang_calls import frozen, pause, refit, resume, version
from tests.sim.support import (
    CONNECTION_LOST,
    Client,
    chat_body,
    generate_body,
    running,
    serving,
    sglang,
    sglang_core,
)

# --- Sleep ----------------------------------------------------------------------------------------


async def test_sleep_on_busy_kills_the_engine() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=100))
        await running(client)
        with pytest.raises(CONNECTION_LOST):
            await client.post("/release_memory_occupation", {})
        with pytest.raises(CONNECTION_LOST):
            await task
        assert "not idle" in await client.engine.wait_dead()
        with pytest.raises(CONNECTION_LOST):
            await client.get("/health")


async def test_sleep_is_safe_for_waiting_requests_of_a_retract_pause() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=4))
        await running(client)
        await pause(client, "retract")
        await frozen(client)
        assert (await client.post("/release_memory_occupation", {})).json is None
        await client.post("/resume_memory_occupation", {})
        await refit(client)
        await resume(client)
        await client.engine.step(3)
        assert (await task).json["meta_info"]["weight_version"] == "7"


async def test_release_does_not_close_the_gate_and_a_request_then_kills() -> None:
    async with serving(sglang()) as client:
        assert (await client.post("/release_memory_occupation", {})).status == 200
        assert (await client.get("/ready")).status == 200
        with pytest.raises(CONNECTION_LOST):
            await client.post("/generate", generate_body())
        assert "released" in await client.engine.wait_dead()


@pytest.mark.parametrize(
    ("released", "resumed"),
    [(["weights"], ["kv_cache"]), (["kv_cache"], None), ([], None)],
    ids=["wrong tag", "untagged after partial", "nothing released"],
)
async def test_wake_wrong_tag_kills_the_engine(
    released: list[str], resumed: list[str] | None
) -> None:
    async with serving(sglang()) as client:
        if released:
            assert (
                await client.post("/release_memory_occupation", {"tags": released})
            ).status == 200
        with pytest.raises(CONNECTION_LOST):
            await client.post("/resume_memory_occupation", {"tags": resumed})
        assert "tag" in await client.engine.wait_dead()


@pytest.mark.parametrize("again", [["weights"], ["kv_cache", "weights"], None])
async def test_releasing_what_is_released_kills_the_engine(again: list[str] | None) -> None:
    async with serving(sglang()) as client:
        await pause(client, "retract")
        first = await client.post("/release_memory_occupation", {"tags": ["weights"]})
        assert first.status == 200
        with pytest.raises(CONNECTION_LOST):
            await client.post("/release_memory_occupation", {"tags": again})
        assert "released already" in await client.engine.wait_dead()


async def test_another_tag_can_be_released_later() -> None:
    async with serving(sglang()) as client:
        for tag in ("weights", "kv_cache"):
            reply = await client.post("/release_memory_occupation", {"tags": [tag]})
            assert reply.status == 200
        assert sglang_core(client).released == {"weights", "kv_cache"}


async def test_tags_come_back_one_by_one() -> None:
    async with serving(sglang()) as client:
        assert (await client.get("/release_memory_occupation", data=b"{}")).status == 200
        for tag in ("weights", "kv_cache", "cuda_graph"):
            reply = await client.post("/resume_memory_occupation", {"tags": [tag]})
            assert (reply.status, reply.text) == (200, "null")
        assert (await client.post("/generate", generate_body())).status == 200


async def test_an_unknown_tag_is_refused() -> None:
    async with serving(sglang()) as client:
        reply = await client.post("/release_memory_occupation", {"tags": ["everything"]})
        assert reply.status == 400


async def test_wake_does_not_reopen_the_gate() -> None:
    async with serving(sglang()) as client:
        await pause(client, "abort")
        await client.post("/release_memory_occupation", {})
        await client.post("/resume_memory_occupation", {})
        assert (await client.get("/ready")).status == 503
        task = client.soon("/generate", generate_body())
        gate = sglang_core(client).gate
        await client.engine.until(lambda: gate.waiting == 1)
        await resume(client)
        assert (await task).status == 200


async def test_weights_are_undefined_between_wake_and_refit() -> None:
    async with serving(sglang()) as client:
        await client.post("/release_memory_occupation", {"tags": ["weights"]})
        await client.post("/resume_memory_occupation", {"tags": ["weights"]})
        info = (await client.post("/generate", generate_body(rid="a"))).json["meta_info"]
        assert info["weight_version"] == "default", "what the engine believes"
        (span,) = client.engine.journal.generation("a").truth
        assert span.version == "undefined"


async def test_weights_that_are_backed_up_survive_a_sleep() -> None:
    async with serving(sglang(weights_cpu_backup=True)) as client:
        assert (await client.get("/server_info")).json["enable_weights_cpu_backup"] is True
        await client.post("/release_memory_occupation", {"tags": ["weights"]})
        await client.post("/resume_memory_occupation", {"tags": ["weights"]})
        await client.post("/generate", generate_body(rid="a"))
        (span,) = client.engine.journal.generation("a").truth
        assert span.version == "default"


async def test_sleep_flushes_the_cache() -> None:
    async with serving(sglang(block_size=4)) as client:
        await client.post("/generate", generate_body("0123456789"))
        await client.post("/release_memory_occupation", {"tags": ["kv_cache"]})
        await client.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
        info = (await client.post("/generate", generate_body("0123456789"))).json["meta_info"]
        assert info["cached_tokens"] == 0


# --- Refits ---------------------------------------------------------------------------------------


TENSOR = {"serialized_named_tensors": ["AAAA"], "weight_version": "7"}
DISTRIBUTED = {"names": ["w"], "dtypes": ["bfloat16"], "shapes": [[1]], "weight_version": "7"}
GROUP = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [("tensor", TENSOR), ("distributed", DISTRIBUTED)],
)
async def test_refit_without_session_is_refused(path: str, body: dict[str, object]) -> None:
    async with serving(sglang()) as client:
        if path == "distributed":
            assert (await client.post("/init_weights_update_group", GROUP)).status == 200
        route = f"/update_weights_from_{path}"
        reply = await client.post(route, body)
        assert (reply.status, reply.json["success"]) == (400, False)
        assert await version(client) == ("default", "default")
        assert (await client.post("/begin_weight_update", {})).status == 200
        assert (await client.post(route, body)).json["success"]
        assert (await client.post("/end_weight_update", {})).status == 200
        assert await version(client) == ("7", "7")


async def test_a_second_begin_and_an_orphan_end_are_refused() -> None:
    async with serving(sglang()) as client:
        assert (await client.post("/end_weight_update", {})).status == 400
        assert (await client.post("/begin_weight_update", {})).status == 200
        assert (await client.post("/begin_weight_update", {})).status == 400


async def test_disk_and_ipc_need_no_session() -> None:
    async with serving(sglang()) as client:
        reply = await refit(client)
        assert reply.json == {
            "success": True,
            "message": "Succeeded to update model weights. Weight version updated to 7.",
            "num_paused_requests": 0,
        }
        ipc = {"zmq_handles": {"gpu": "ipc:///x"}, "weight_version": "8"}
        assert (await client.post("/update_weights_from_ipc", ipc)).json["success"]
        assert await version(client) == ("8", "8")


async def test_a_refit_through_a_group_needs_the_group() -> None:
    async with serving(sglang()) as client:
        await client.post("/begin_weight_update", {})
        assert (await client.post("/update_weights_from_distributed", DISTRIBUTED)).status == 400
        assert (await client.post("/init_weights_update_group", GROUP)).status == 200
        assert (await client.post("/init_weights_update_group", GROUP)).status == 400
        assert (await client.post("/update_weights_from_distributed", DISTRIBUTED)).status == 200
        assert (await client.post("/destroy_weights_update_group", {})).status == 200
        assert (await client.post("/destroy_weights_update_group", {})).status == 400


async def test_refit_with_a_refused_flush_is_400_with_the_weights_changed_and_the_version_split() -> (
    None
):
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=6, rid="a"))
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        reply = await refit(client)
        assert (reply.status, reply.json["success"]) == (400, False)
        assert await version(client) == ("default", "7"), "the tokenizer keeps the old one"
        await resume(client)
        await client.engine.step(5)
        info = (await task).json["meta_info"]
        assert info["weight_versions"] == [
            {"version": "default", "start": 0, "end": 1},
            {"version": "7", "start": 1, "end": 6},
        ]
        truth = client.engine.journal.generation("a").truth
        assert [(s.version, s.start, s.end) for s in truth] == [("default", 0, 1), ("7", 1, 6)]


async def test_chunks_between_carry_the_tokenizers_version_and_the_last_one_the_schedulers() -> (
    None
):
    async with serving(sglang(manual=True)) as client:
        task = asyncio.create_task(client.events("/generate", generate_body(tokens=3, stream=True)))
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        assert (await refit(client)).status == 400
        await resume(client)
        await client.engine.step(2)
        *chunks, _ = await task
        assert [c["meta_info"]["weight_version"] for c in chunks] == ["default", "default", "7"]


async def test_a_refit_in_place_without_a_flush_serves_stale_kv() -> None:
    async with serving(sglang(block_size=4)) as client:
        await client.post("/generate", generate_body("0123456789"))
        assert (await refit(client, flush_cache=False)).status == 200
        await client.post("/generate", generate_body("0123456789", rid="a"))
        generation = client.engine.journal.generation("a")
        assert (generation.cached_tokens, generation.stale_cached_tokens) == (8, 8)


async def test_a_refit_flushes_by_default() -> None:
    async with serving(sglang(block_size=4)) as client:
        await client.post("/generate", generate_body("0123456789"))
        assert (await refit(client)).status == 200
        await client.post("/generate", generate_body("0123456789", rid="a"))
        assert client.engine.journal.generation("a").cached_tokens == 0


async def test_refit_unpaused_and_busy_waits_for_the_drain_and_new_requests_queue_behind() -> None:
    async with serving(sglang(manual=True)) as client:
        first = client.soon("/generate", generate_body(tokens=2, rid="first"))
        await running(client)
        refitting = asyncio.create_task(refit(client))
        await client.engine.until(
            lambda: bool(client.engine.journal.of("/update_weights_from_disk"))
        )
        second = client.soon("/generate", generate_body(tokens=1, rid="second"))
        gate = sglang_core(client).gate
        await client.engine.until(lambda: gate.waiting == 1)
        assert not refitting.done()
        await client.engine.step()
        assert (await first).json["meta_info"]["weight_version"] == "default"
        assert (await refitting).status == 200
        await client.engine.step()
        assert (await second).json["meta_info"]["weight_version"] == "7"


async def test_abort_all_requests_shortens_the_drain() -> None:
    async with serving(sglang(manual=True)) as client:
        first = client.soon("/generate", generate_body(tokens=2000))
        await running(client)
        refitting = asyncio.create_task(refit(client, abort_all_requests=True))
        sequence = client.engine.core.ranks[0].scheduler.decoding[0]
        await client.engine.until(lambda: sequence.abort_message is not None)
        await client.engine.step()
        assert (await first).json["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await refitting).status == 200


@pytest.mark.parametrize(
    ("path", "waits"),
    [("/update_weights_from_ipc", True), ("/update_weights_from_disk", False)],
)
async def test_continue_waits_behind_an_ipc_update_but_races_with_a_disk_update(
    path: str, waits: bool
) -> None:
    async with serving(sglang(speed=1, timings=Timings(refit_s=3600.0))) as client:
        core = sglang_core(client)
        journal = client.engine.journal
        await pause(client, "retract")
        await frozen(client)
        update = client.soon(path, {"model_path": "/w", "zmq_handles": {}})
        rank = core.ranks[0]
        await client.engine.until(lambda: rank.operating)
        continuing = client.soon("/continue_generation", {})
        await client.engine.until(lambda: bool(journal.of("/continue_generation")))
        # Two round trips later the continue has had its turn.
        await client.get("/ready")
        ready = await client.get("/ready")
        assert ready.status == (503 if waits else 200)
        assert core.gate.paused is waits
        for task in (update, continuing):
            task.cancel()


async def test_version_label_call_aborts_all_by_default() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=50))
        await running(client)
        labelled = client.soon("/update_weight_version", {"new_version": "9"})
        sequence = client.engine.core.ranks[0].scheduler.decoding[0]
        await client.engine.until(lambda: sequence.abort_message is not None)
        await client.engine.step()
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await labelled).json == {
            "success": True,
            "message": "Weight version updated to 9",
            "new_version": "9",
        }


async def test_version_label_alone_flips_the_stamp_in_the_middle_of_a_request() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/v1/chat/completions", chat_body(tokens=4, rid="a"))
        await running(client)
        body = {"new_version": "9", "abort_all_requests": False}
        assert (await client.post("/update_weight_version", body)).status == 200
        await client.engine.step(3)
        assert (await task).json["metadata"] == {
            "weight_version": "9",
            "weight_versions": [
                {"version": "default", "start": 0, "end": 1},
                {"version": "9", "start": 1, "end": 4},
            ],
        }
        truth = client.engine.journal.generation("a").truth
        assert {span.revision for span in truth} == {0}, "the weights never changed"


async def test_a_refit_without_a_version_changes_the_weights_behind_the_label() -> None:
    async with serving(sglang()) as client:
        assert (await refit(client, version=None)).status == 200
        info = (await client.post("/generate", generate_body(rid="a"))).json["meta_info"]
        assert info["weight_version"] == "default"
        (span,) = client.engine.journal.generation("a").truth
        assert (span.version, span.revision) == (None, 1)


async def test_served_model_name_changes_to_the_path_of_a_disk_refit() -> None:
    async with serving(sglang(model="qwen")) as client:
        assert (await client.get("/v1/models")).json["data"][0]["id"] == "qwen"
        await refit(client)
        assert (await client.get("/v1/models")).json["data"][0]["id"] == "/w/7"
        info = (await client.get("/model_info")).json
        assert (info["served_model_name"], info["model_path"]) == ("/w/7", "/w/7")
        launch = (await client.get("/server_info")).json
        assert (launch["served_model_name"], launch["weight_version"]) == ("qwen", "default")


async def test_the_checksum_tells_whether_a_refit_landed() -> None:
    async with serving(sglang()) as one, serving(sglang()) as other:

        async def checksum(client: Client) -> str:
            reply = await client.post("/weights_checker", {"action": "checksum"})
            return str(reply.json["per_engine_checksum"])

        before = await checksum(one)
        await refit(one)
        assert await checksum(one) != before
        await refit(other, version="other name, same weights")
        assert await checksum(one) == await checksum(other)


async def test_the_checker_compares_with_its_snapshot() -> None:
    async with serving(sglang()) as client:

        async def check(action: str) -> int:
            return (await client.post("/weights_checker", {"action": action})).status

        assert await check("compare") == 400
        assert await check("snapshot") == 200
        assert await check("compare") == 200
        assert await check("reset_tensors") == 200
        assert await check("compare") == 400
        assert await check("other") == 400
        assert (await client.get("/weights_checker")).json["success"]


# --- Data parallel --------------------------------------------------------------------------------


async def test_disagreeing_ranks_show_the_first_one() -> None:
    async with serving(sglang(dp_size=2)) as client:
        await client.post("/_sim/rank", {"rank": 1, "version": "other"})
        states = (await client.get("/server_info")).json["internal_states"]
        assert [state["weight_version"] for state in states] == ["default", "other"]
        assert (await client.get("/model_info")).json["weight_version"] == "default"


async def test_a_flush_reports_the_first_rank_only() -> None:
    async with serving(sglang(dp_size=2, manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=9, routed_dp_rank=1))
        await running(client, rank=1)
        assert (await client.post("/flush_cache")).status == 200
        task.cancel()


async def test_replicas_take_a_disk_refit_and_list_their_paused_requests() -> None:
    async with serving(sglang(dp_size=2)) as client:
        reply = await refit(client)
        assert (reply.status, reply.json["num_paused_requests"]) == (200, [0, 0])
        assert [rank.weights.label for rank in client.engine.core.ranks] == ["7", "7"]


async def test_replicas_refuse_the_other_refits() -> None:
    async with serving(sglang(dp_size=2)) as client:
        await client.post("/begin_weight_update", {})
        for path, body, status in [
            ("/update_weights_from_tensor", TENSOR, 500),
            ("/update_weights_from_distributed", DISTRIBUTED, 500),
            ("/init_weights_update_group", GROUP, 500),
            ("/update_weights_from_ipc", {"zmq_handles": {}}, 400),
        ]:
            assert (await client.post(path, body)).status == status


# --- Restart --------------------------------------------------------------------------------------


async def test_a_restart_is_unpaused_awake_and_back_at_the_launch_version() -> None:
    async with serving(sglang()) as client:
        await refit(client)
        await pause(client, "in_place")
        await client.post("/release_memory_occupation", {})
        url = client.engine.url
        assert await client.engine.restart() == url
        assert await version(client) == ("default", "default")
        assert (await client.get("/ready")).status == 200
        assert (await client.post("/generate", generate_body())).status == 200
        assert client.engine.boot == 2
