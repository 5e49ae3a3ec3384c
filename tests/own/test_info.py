"""``/model_info`` and ``/server_info``: one engine's own words, without secrets."""

import pytest

from steersman.engine import Runtime
from steersman.settings import PoolSettings
from steersman_proxy.own.redaction import redact
from tests.observation.support import (
    CLOSED,
    engine_of,
    fake_engine,
    fleet_of,
    pool_row,
    row,
)
from tests.own.support import code_of, json_of, own_routes

INFO = {"model_path": "/m", "weight_version": "default", "is_generation": True}


async def test_one_engine_s_answer_with_the_pool_s_newest_version():
    async with fake_engine(model_info=(200, INFO)) as engine:
        fleet = fleet_of(row("e1", url=engine.url))
        async with own_routes(fleet) as own:
            answer = await own("/model_info")
        assert json_of(answer) == INFO | {"weight_version": "7"}
        assert answer.engine is engine_of(fleet, "e1")
        assert engine_of(fleet, "e1").load.requests == 0


async def test_without_a_version_of_the_pool_the_engine_s_word_stays():
    async with fake_engine(model_info=(200, INFO)) as engine:
        pools = [pool_row(fleet_max=None)]
        fleet = fleet_of(row("e1", url=engine.url, version=None), pools=pools)
        async with own_routes(fleet) as own:
            assert json_of(await own("/model_info")) == INFO


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ("/model_info", "get_model_info"),
        ("/get_model_info", "model_info"),
        ("/server_info", "get_server_info"),
        ("/get_server_info", "server_info"),
    ],
)
async def test_both_spellings_work_with_older_and_newer_engines(asked, offered):
    async with fake_engine(**{offered: (200, {"a": 1})}) as engine:
        async with own_routes(fleet_of(row("e1", url=engine.url))) as own:
            assert json_of(await own(asked))["a"] == 1
        assert engine.targets() == [f"GET {asked}", f"GET /{offered}"]


async def test_an_engine_without_the_route_says_so_itself():
    async with fake_engine() as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            answer = await own("/model_info")
        assert answer.status == 404
        assert answer.engine is engine_of(fleet, "v")


async def test_another_engine_is_asked_when_one_cannot_be_reached(free_ports):
    dead = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    async with fake_engine(model_info=(200, INFO)) as engine:
        fleet = fleet_of(row("d1", url=dead[0]), row("d2", url=dead[1]), row("e1", url=engine.url))
        async with own_routes(fleet) as own:
            answer = await own("/model_info")
        assert answer.status == 200
        assert answer.engine is engine_of(fleet, "e1")
    assert all(engine.load.requests == 0 for engine in fleet.engines())


async def test_nobody_answers(free_port):
    fleet = fleet_of(row("d1", url=f"http://127.0.0.1:{free_port}"))
    async with own_routes(fleet) as own:
        assert code_of(await own("/model_info")) == (502, "upstream_error")


async def test_closed_engines_are_not_asked_and_the_reason_is_told():
    async with fake_engine(model_info=(200, INFO)) as engine:
        fleet = fleet_of(row("e1", url=engine.url, gate=CLOSED))
        async with own_routes(fleet) as own:
            answer = await own("/model_info")
        assert code_of(answer) == (503, "no_available_workers")
        assert json_of(answer)["error"]["reasons"] == {"gate_closed": 1}
        assert engine.seen == []


async def test_looking_does_not_wait_behind_a_full_pool():
    async with fake_engine(model_info=(200, INFO)) as engine:
        settings = PoolSettings(max_in_flight_per_engine=1)
        fleet = fleet_of(row("e1", url=engine.url), settings=settings)
        guard = engine_of(fleet, "e1").load.take()
        async with own_routes(fleet) as own:
            assert (await own("/model_info")).status == 200
        guard.release()


async def test_the_pool_is_named_by_header_or_model_or_is_the_default():
    async with (
        fake_engine(model_info=(200, {"who": "a"})) as a,
        fake_engine(model_info=(200, {"who": "b"})) as b,
    ):
        rows = (row("a", url=a.url, pool="pa"), row("b", url=b.url, pool="pb"))
        pools = [pool_row("pa", "model/a"), pool_row("pb", "model/b")]
        async with own_routes(fleet_of(*rows, pools=pools)) as own:
            assert json_of(await own("/model_info", pool="pb"))["who"] == "b"
            assert json_of(await own("/model_info?model=model%2Fb"))["who"] == "b"
            both = await own("/model_info?model=model%2Fb", pool="pa")
            assert json_of(both)["who"] == "a"
            assert code_of(await own("/model_info")) == (400, "model_required")
            assert code_of(await own("/model_info", pool="x")) == (404, "model_not_found")
            assert code_of(await own("/model_info?model=x")) == (404, "model_not_found")
        pools[1] = pool_row("pb", "model/b", default=True)
        async with own_routes(fleet_of(*rows, pools=pools)) as own:
            assert json_of(await own("/model_info"))["who"] == "b"
        assert {seen.target for seen in a.seen + b.seen} == {"/model_info"}


async def test_row_51_the_engine_s_key_goes_out_and_the_client_s_does_not():
    async with fake_engine(model_info=(200, INFO)) as engine:
        engine.key = "k1"
        fleet = fleet_of(row("e1", url=engine.url))
        async with own_routes(fleet, keys={"main": "k1"}) as own:
            sent = ((b"Authorization", b"Bearer k0"), (b"x-api-key", b"k0"), (b"Cookie", b"c=k0"))
            answer = await own("/model_info", headers=sent)
        assert answer.status == 200
        assert "k0" not in str(engine.seen)
        assert engine.seen[0].headers["authorization"] == "Bearer k1"


async def test_a_key_that_the_engine_refuses_is_not_the_client_s_fault():
    async with fake_engine(model_info=(200, INFO)) as engine:
        engine.key = "k1"
        fleet = fleet_of(row("e1", url=engine.url))
        async with own_routes(fleet, keys={"main": "wrong-key"}) as own:
            answer = await own("/model_info")
        assert code_of(answer) == (502, "upstream_error")
        assert b"engineKeys" in answer.body
        assert b"wrong-key" not in answer.body


async def test_secrets_of_a_launch_are_not_told():
    launch = {
        "api_key": "engine-key",
        "admin_api_key": "a-secret",
        "ssl_keyfile_password": "p-secret",
        "eos_token": "</s>",
        "launch_command": "python -m sglang --admin-api-key a-secret --api-key=engine-key --tp 2",
        "internal_states": [{"API_KEY": "s", "argv": ["--api-key", "engine-key", "--tp", "2"]}],
        "note": "started with engine-key",
    }
    async with fake_engine(server_info=(200, launch)) as engine:
        engine.key = "engine-key"
        fleet = fleet_of(row("e1", url=engine.url))
        async with own_routes(fleet, keys={"main": "engine-key"}) as own:
            answer = await own("/server_info")
    assert b"secret" not in answer.body
    assert b"engine-key" not in answer.body
    told = json_of(answer)
    assert told["eos_token"] == "</s>"
    assert told["launch_command"] == "python -m sglang --admin-api-key *** --api-key=*** --tp 2"
    assert told["internal_states"] == [{"argv": ["--api-key", "***", "--tp", "2"]}]
    assert told["weight_version"] == "7"


def test_redaction_leaves_the_rest_alone():
    content = {"a": [1, 2.5, None, True, "--tp"], "tokenizer_path": "/x", "max_tokens": 5}
    assert redact(content) == content
    assert redact("--hf-token 'x y' --model m") == "--hf-token *** --model m"


async def test_an_answer_that_is_not_json_is_passed_on_as_text():
    async with fake_engine(server_info=(500, "boom k1 --api-key k2")) as engine:
        fleet = fleet_of(row("e1", url=engine.url))
        async with own_routes(fleet, keys={"main": "k1"}) as own:
            answer = await own("/server_info")
    assert (answer.status, answer.body) == (500, b"boom *** --api-key ***")
