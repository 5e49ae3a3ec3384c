"""Keys, information and load of the SGLang engine."""

import json
from datetime import datetime

import pytest

from tests.sim.support import generate_body, running, serving, sglang

KEYS = {"none": None, "api": "data-key", "admin": "admin-key"}
OK, NO = 200, 401

# Rows: which keys the engine has; columns: which key the caller sends (none, api, admin).
NORMAL = {
    (False, False): (OK, OK, OK),
    (True, False): (NO, OK, NO),
    (False, True): (OK, OK, OK),
    (True, True): (NO, OK, NO),
}
ADMIN = {
    (False, False): (OK, OK, OK),
    (True, False): (NO, OK, NO),
    (False, True): (NO, NO, OK),
    (True, True): (NO, NO, OK),
}
OPEN = dict.fromkeys(NORMAL, (OK, OK, OK))


@pytest.mark.parametrize("launched", list(NORMAL), ids=["no key", "api", "admin", "both"])
@pytest.mark.parametrize(
    ("matrix", "method", "path"),
    [
        (NORMAL, "POST", "/generate"),
        (NORMAL, "GET", "/model_info"),
        (NORMAL, "GET", "/server_info"),
        (NORMAL, "GET", "/v1/loads"),
        (NORMAL, "GET", "/v1/models"),
        (NORMAL, "GET", "/ping"),
        (ADMIN, "POST", "/continue_generation"),
        (ADMIN, "POST", "/flush_cache"),
        (ADMIN, "POST", "/abort_request"),
        (OPEN, "GET", "/health"),
        (OPEN, "GET", "/ready"),
        (OPEN, "GET", "/metrics"),
    ],
)
async def test_auth_matrix_of_api_and_admin_key(
    launched: tuple[bool, bool],
    matrix: dict[tuple[bool, bool], tuple[int, int, int]],
    method: str,
    path: str,
) -> None:
    has_api, has_admin = launched
    config = sglang(
        api_key=KEYS["api"] if has_api else None,
        admin_api_key=KEYS["admin"] if has_admin else None,
        health_generation=False,
    )
    async with serving(config) as client:
        body = generate_body(tokens=1) if path == "/generate" else {}
        for key, expected in zip(KEYS.values(), matrix[launched], strict=True):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            reply = await client.call(
                method, path, body if method == "POST" else None, headers=headers
            )
            assert reply.status == expected, (key, reply.text)
            if expected == NO:
                assert reply.json == {"error": "Unauthorized"}


async def test_unknown_paths_and_methods() -> None:
    async with serving(sglang()) as client:
        for path in ("/get_load", "/get_weight_version", "/weight_version", "/pause", "/version"):
            assert (await client.get(path)).status == 404
        reply = await client.get("/generate")
        assert (reply.status, reply.headers["Allow"]) == (405, "POST, PUT")


@pytest.mark.parametrize(
    ("path", "alias"), [("/model_info", "/get_model_info"), ("/server_info", "/get_server_info")]
)
async def test_old_names_are_aliases(path: str, alias: str) -> None:
    async with serving(sglang()) as client:
        assert (await client.get(path)).json == (await client.get(alias)).json


async def test_server_info_describes_the_launch() -> None:
    async with serving(
        sglang(dp_size=2, block_size=64, model="qwen", weight_version="3")
    ) as client:
        info = (await client.get("/server_info")).json
        assert (info["dp_size"], info["page_size"], info["version"]) == (2, 64, "0.5.23")
        assert (info["weight_version"], info["frontend"], info["kv_events"]) == (
            "3",
            "python",
            None,
        )
        assert len(info["internal_states"]) == 2


async def test_the_times_of_the_start_tell_one_start_from_another() -> None:
    async with serving(sglang(seed=7)) as client:
        first = (await client.get("/server_info")).json
        assert first["startup_time"]["scheduler_e2e"] > 0
        assert first["startup_time"] == first["internal_states"][0]["startup_time"]
        assert (await client.get("/server_info")).json["startup_time"] == first["startup_time"]
        await client.engine.restart()
        second = (await client.get("/server_info")).json
        assert second["startup_time"] != first["startup_time"]


async def test_loads_are_dated_as_the_engine_dates_them() -> None:
    async with serving(sglang()) as client:
        reply = (await client.get("/v1/loads")).json
        now = datetime.fromisoformat(reply["timestamp"])
        assert now.tzinfo is not None
        assert abs(now.timestamp() - reply["loads"][0]["timestamp"]) < 60


async def test_models_by_name() -> None:
    async with serving(sglang(model="org/qwen")) as client:
        card = (await client.get("/v1/models/org/qwen")).json
        assert (card["id"], card["owned_by"]) == ("org/qwen", "sglang")
        missing = await client.get("/v1/models/other")
        assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


async def test_loads_tell_the_ranks_apart() -> None:
    async with serving(sglang(dp_size=2, manual=True)) as client:
        task = client.soon("/generate", generate_body("x" * 64, tokens=9, routed_dp_rank=1))
        await running(client, rank=1)
        loads = (await client.get("/v1/loads")).json["loads"]
        assert [load["num_running_reqs"] for load in loads] == [0, 1]
        assert loads[1]["num_used_tokens"] >= 64
        assert loads[1]["total_prefill_uncached_tokens"] == 64
        assert set(loads[0]) >= {"memory", "speculative", "lora", "disaggregation", "queues"}
        one = (await client.get("/v1/loads?dp_rank=1&include=core")).json["loads"]
        assert [load["dp_rank"] for load in one] == [1]
        assert "memory" not in one[0]
        task.cancel()


async def test_loads_of_an_unknown_rank_are_empty_and_bad_queries_are_refused() -> None:
    async with serving(sglang()) as client:
        assert (await client.get("/v1/loads?dp_rank=7")).json["loads"] == []
        for query in ("include=cores", "dp_rank=x", "format=xml"):
            assert (await client.get(f"/v1/loads?{query}")).status == 400


async def test_the_queue_shows_in_the_load_at_the_next_report() -> None:
    async with serving(sglang(manual=True, max_running=1, load_interval_steps=2)) as client:
        tasks = [client.soon("/generate", generate_body(tokens=99)) for _ in range(3)]
        await client.engine.until(lambda: client.engine.core.unfinished == 3)
        await client.engine.step()
        load = (await client.get("/v1/loads")).json["loads"][0]
        assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 2)
        assert load["num_waiting_uncached_tokens"] == 10
        await client.engine.step()
        same = (await client.get("/v1/loads")).json["loads"][0]
        assert same["timestamp"] == load["timestamp"], "between two reports nothing moves"
        await client.engine.step()
        newer = (await client.get("/v1/loads")).json["loads"][0]
        assert newer["timestamp"] > load["timestamp"]
        for task in tasks:
            task.cancel()


async def test_metrics_and_prometheus_loads() -> None:
    async with serving(sglang()) as client:
        text = (await client.get("/metrics")).text
        assert 'sglang:num_running_reqs{model_name="sim-model",dp_rank="0"} 0' in text
        text = (await client.get("/v1/loads?format=prometheus")).text
        assert 'sglang_num_running_reqs{dp_rank="0"} 0' in text


async def test_tokenize_and_detokenize_are_inverse() -> None:
    async with serving(sglang()) as client:
        for prefix in ("", "/v1"):
            reply = await client.post(f"{prefix}/tokenize", {"model": "m", "prompt": "häh"})
            assert reply.json["count"] == len(reply.json["tokens"]) == 4
            body = {"model": "m", "tokens": reply.json["tokens"]}
            assert (await client.post(f"{prefix}/detokenize", body)).json["text"] == "häh"


async def test_tokenized_messages_are_the_prompt_of_the_chat() -> None:
    async with serving(sglang()) as client:
        messages = [{"role": "user", "content": "hi"}]
        count = (await client.post("/tokenize", {"messages": messages})).json["count"]
        chat = (
            await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        ).json
        assert chat["usage"]["prompt_tokens"] == count


async def test_small_control_routes_answer() -> None:
    async with serving(sglang()) as client:
        assert (await client.post("/set_internal_state", {"server_args": {}})).json == [True]
        assert (await client.post("/slow_down", {"forward_sleep_time": None})).status == 200
        assert "Start" in (await client.post("/start_profile")).text
        weights = await client.post("/get_weights_by_name", {"name": "w", "truncate_size": 3})
        assert len(json.loads(weights.body)) == 3
        assert (await client.post("/get_weights_by_name", {})).status == 400
        assert (
            await client.post("/open_session", {"capacity_of_str_len": 9})
        ).json == "sim-session"
