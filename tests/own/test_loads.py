"""``/v1/loads`` over all engines, readable by whoever reads SGLang's."""

from steersman.engine import Runtime
from steersman_proxy.own.loads import vllm_rows
from tests.observation.support import (
    CLOSED,
    engine_of,
    fake_engine,
    fleet_of,
    new_fleet,
    pool_row,
    row,
)
from tests.own.support import code_of, json_of, own_routes

RANKS = [{"dp_rank": 0, "num_running_reqs": 3}, {"dp_rank": 1, "num_running_reqs": 4}]

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 11.0
"""


async def test_ranks_of_all_engines_in_one_list():
    async with (
        fake_engine(**{"v1/loads": (200, {"loads": RANKS, "version": "x"})}) as two,
        fake_engine(**{"v1/loads": (200, {"loads": RANKS[:1]})}) as one,
    ):
        fleet = fleet_of(row("e1", url=two.url), row("e2", url=one.url))
        guard = engine_of(fleet, "e2").load.take()
        async with own_routes(fleet) as own:
            answer = json_of(await own("/v1/loads?include=core&model=main-model"))
        guard.release()
        assert two.targets() == ["GET /v1/loads?include=core"]
    rows = [(load["engine"], load["dp_rank"], load["num_running_reqs"]) for load in answer["loads"]]
    assert rows == [("e1", 0, 3), ("e1", 1, 4), ("e2", 0, 3)]
    assert answer["loads"][0]["url"] == two.url
    assert answer["loads"][0]["pool"] == "main"
    assert [(e["engine"], e["in_flight"]) for e in answer["engines"]] == [("e1", 0), ("e2", 1)]
    assert answer["failed"] == answer["skipped"] == []
    assert answer["timestamp"]


async def test_older_sglang_has_older_rows():
    async with (
        fake_engine(get_load=(200, [{"dp_rank": 0, "num_reqs": 5}])) as engine,
        own_routes(fleet_of(row("e1", url=engine.url))) as own,
    ):
        (load,) = json_of(await own("/get_loads"))["loads"]
    assert load["num_reqs"] == 5


async def test_vllm_s_rows_come_from_its_metrics():
    async with fake_engine(metrics=(200, METRICS)) as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            first, second = json_of(await own("/v1/loads"))["loads"]
    assert (first["dp_rank"], first["num_running_reqs"], first["num_waiting_reqs"]) == (0, 3, 7)
    assert first["token_usage"] == 0.25
    assert (second["dp_rank"], second["num_running_reqs"]) == (1, 0)
    assert first["engine"] == "v"


async def test_vllm_without_metrics_tells_what_it_counts():
    async with fake_engine(load=(200, {"server_load": 6})) as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            (load,) = json_of(await own("/v1/loads"))["loads"]
    assert load["num_running_reqs"] == 6


async def test_an_engine_of_unknown_runtime_is_asked_both_ways():
    async with fake_engine(load=(200, {"server_load": 1})) as engine:
        fleet = fleet_of(row("u", url=engine.url, runtime=Runtime.UNKNOWN))
        async with own_routes(fleet) as own:
            assert len(json_of(await own("/v1/loads"))["loads"]) == 1
        paths = [target.split()[1] for target in engine.targets()]
        assert paths == ["/v1/loads", "/get_load", "/metrics", "/load"]


async def test_engines_that_sleep_or_are_closed_are_not_asked(free_port):
    async with fake_engine(**{"v1/loads": (200, {"loads": RANKS})}) as engine:
        fleet = fleet_of(
            row("closed", url=engine.url, gate=CLOSED),
            row("asleep", url=engine.url, released=("weights",)),
            row("dead", url=f"http://127.0.0.1:{free_port}"),
            row("odd", url=f"{engine.url}/nowhere"),
            row("open", url=engine.url),
        )
        async with own_routes(fleet) as own:
            answer = json_of(await own("/v1/loads"))
        assert {load["engine"] for load in answer["loads"]} == {"open"}
        assert [(e["engine"], e["reason"]) for e in answer["skipped"]] == [
            ("closed", "gate_closed"),
            ("asleep", "asleep"),
        ]
        dead, odd = answer["failed"]
        assert (dead["engine"], dead["error"]) == ("dead", "upstream_unreachable")
        assert (odd["engine"], odd["error"], odd["status"]) == ("odd", "upstream_error", 404)
        assert [e["engine"] for e in answer["engines"]] == ["dead", "odd", "open"]
    assert all(engine.load.requests == 0 for engine in fleet.engines())


async def test_all_pools_unless_one_is_named():
    async with fake_engine(**{"v1/loads": (200, {"loads": RANKS[:1]})}) as engine:
        rows = (row("a", url=engine.url, pool="pa"), row("b", url=engine.url, pool="pb"))
        fleet = fleet_of(*rows, pools=[pool_row("pa"), pool_row("pb")])
        async with own_routes(fleet) as own:
            assert [x["pool"] for x in json_of(await own("/v1/loads"))["loads"]] == ["pa", "pb"]
            named = json_of(await own("/v1/loads", pool="pb"))
            assert [x["pool"] for x in named["loads"]] == ["pb"]


async def test_nobody_to_ask_and_nobody_who_answers(free_port):
    async with own_routes(fleet_of()) as own:
        assert json_of(await own("/v1/loads"))["loads"] == []
    async with own_routes(new_fleet()) as own:
        assert code_of(await own("/v1/loads")) == (503, "no_table")
    async with own_routes(fleet_of(row("d", url=f"http://127.0.0.1:{free_port}"))) as own:
        answer = await own("/v1/loads")
        assert code_of(answer) == (502, "upstream_error")
        assert json_of(answer)["failed"][0]["engine"] == "d"


async def test_the_prometheus_format_is_not_offered():
    async with own_routes(fleet_of()) as own:
        assert code_of(await own("/v1/loads?format=prometheus")) == (400, "invalid_request")
        assert (await own("/v1/loads?format=json")).status == 200


def test_metrics_without_an_engine_label_are_rank_0():
    assert vllm_rows("vllm:num_requests_running{} 2")[0]["dp_rank"] == 0
    assert vllm_rows("") == []
