"""Aborts go to every engine that could have the request, in its own dialect."""

import pytest

from steersman.engine import Runtime
from steersman.errors import InvalidBody, InvalidRequest
from steersman_proxy.own.abort import MAX_IDS, read_abort
from tests.observation.support import CLOSED, fake_engine, fleet_of, pool_row, row
from tests.own.support import code_of, json_of, own_routes

OK = (200, "")


async def post(own, body, path="/abort_request", **options):
    return await own(path, method="POST", body=body, **options)


async def test_every_open_engine_gets_the_body_as_it_came():
    async with fake_engine(abort_request=OK) as one, fake_engine(abort_request=OK) as two:
        fleet = fleet_of(
            row("e1", url=one.url),
            row("e2", url=two.url, paused=True),
            row("closed", url=one.url, gate=CLOSED),
            row("asleep", url=one.url, released=("kv_cache",)),
        )
        body = b'{ "rid" : "r1", "unknown": [1, 2.50] }'
        async with own_routes(fleet) as own:
            answer = await post(own, body)
        assert answer.status == 200
        assert [seen.body for seen in one.seen + two.seen] == [body, body]
        assert one.seen[0].headers["content-type"] == "application/json"
    content = json_of(answer)
    assert [entry["engine"] for entry in content["results"]] == ["e1", "e2"]
    assert [entry["engine"] for entry in content["skipped"]] == ["closed", "asleep"]


async def test_one_that_accepts_is_enough(free_port):
    dead = row("dead", url=f"http://127.0.0.1:{free_port}")
    async with fake_engine(abort_request=OK) as good, fake_engine(abort_request=(500, "")) as bad:
        fleet = fleet_of(dead, row("bad", url=bad.url), row("good", url=good.url))
        async with own_routes(fleet) as own:
            answer = await post(own, {"rid": "r1"})
        assert answer.status == 200
        failed = [(f["engine"], f["error"]) for f in json_of(answer)["failed"]]
        assert failed == [("dead", "upstream_unreachable"), ("bad", "upstream_error")]
        async with own_routes(fleet_of(dead, row("bad", url=bad.url))) as own:
            answer = await post(own, {"rid": "r1"})
        assert code_of(answer) == (502, "upstream_error")
        assert len(json_of(answer)["failed"]) == 2


async def test_nobody_may_be_asked():
    async with own_routes(fleet_of(row("e1", gate=CLOSED))) as own:
        answer = await post(own, {"rid": "r1"})
    assert code_of(answer) == (503, "no_available_workers")
    assert json_of(answer)["skipped"][0]["reason"] == "gate_closed"


async def test_vllm_is_told_in_its_own_words():
    async with fake_engine(**{"inference/v1/abort_requests": OK}) as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            assert (await post(own, {"rid": "r1"})).status == 200
            assert (await post(own, {"request_ids": ["a", "b"]}, "/abort_requests")).status == 200
        assert [seen.json for seen in engine.seen] == [
            {"request_ids": ["r1"]},
            {"request_ids": ["a", "b"]},
        ]
        assert {seen.target for seen in engine.seen} == {"/inference/v1/abort_requests"}


async def test_vllm_without_that_route_is_told_by_the_other():
    done = (200, {"status": "aborted", "aborted": 1})
    async with fake_engine(abort_requests=done) as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            assert (await post(own, {"rid": "r1"})).status == 200
            assert (await post(own, {"abort_all": True})).status == 200
        assert engine.targets() == [
            "POST /inference/v1/abort_requests",
            "POST /abort_requests",
            "POST /abort_requests",
        ]
        assert engine.seen[2].json == {}


async def test_vllm_cannot_stop_everything_without_its_dev_mode_nor_by_prefix():
    async with fake_engine() as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            answer = await post(own, {"abort_all": True})
            assert code_of(answer) == (502, "upstream_error")
            assert "VLLM_SERVER_DEV_MODE" in json_of(answer)["failed"][0]["message"]
            answer = await post(own, {"prefix": "x"})
            assert "prefix" in json_of(answer)["failed"][0]["message"]


async def test_sglang_is_told_one_by_one():
    async with fake_engine(abort_request=OK) as engine:
        async with own_routes(fleet_of(row("e1", url=engine.url))) as own:
            assert (await post(own, {"request_ids": ["a", "b"]}, "/abort_requests")).status == 200
            assert (await post(own, {}, "/abort_requests")).status == 200
        assert [seen.json for seen in engine.seen] == [
            {"rid": "a"},
            {"rid": "b"},
            {"rid": "", "abort_all": True},
        ]


async def test_an_engine_of_unknown_runtime_is_told_both_ways():
    async with fake_engine(**{"inference/v1/abort_requests": OK}) as engine:
        fleet = fleet_of(row("u", url=engine.url, runtime=Runtime.UNKNOWN))
        async with own_routes(fleet) as own:
            assert (await post(own, {"rid": "r1"})).status == 200
        assert engine.targets() == ["POST /abort_request", "POST /inference/v1/abort_requests"]


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[]", b'"rid"', b"\xff", b'{"rid": 5}', b'{"rid": [1]}', b'{"prefix": 1}'],
)
async def test_a_body_that_is_no_such_object_is_400(body):
    async with own_routes(fleet_of(row("e1"))) as own:
        assert code_of(await post(own, body)) == (400, "invalid_body")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/abort_request", b"{}"),
        ("/abort_request", b'{"rid": ""}'),
        ("/abort_request", b'{"abort_all": false}'),
        ("/abort_requests", b'{"request_ids": []}'),
        ("/abort_requests", b'{"abort_all": false}'),
    ],
)
def test_an_abort_of_nothing_is_refused_and_never_taken_for_all(path, body):
    with pytest.raises(InvalidRequest):
        read_abort(path, [body])


def test_bodies_may_come_in_parts_and_names_are_bounded():
    assert read_abort("/abort_request", [b'{"rid":', b' "r1"}']).ids == ("r1",)
    assert read_abort("/abort_request", [b'{"rid": ["a", "a", "b"]}']).ids == ("a", "b")
    many = ",".join(f'"{n}"' for n in range(MAX_IDS + 1))
    with pytest.raises(InvalidRequest):
        read_abort("/abort_requests", [f'{{"request_ids": [{many}]}}'.encode()])
    with pytest.raises(InvalidBody):
        read_abort("/abort_request", [b"[" * 100_000])


async def test_the_pool_must_be_known_before_anything_is_stopped():
    async with fake_engine(abort_request=OK) as engine:
        rows = (row("a", url=engine.url, pool="pa"), row("b", url=engine.url, pool="pb"))
        fleet = fleet_of(*rows, pools=[pool_row("pa", "ma"), pool_row("pb", "mb")])
        async with own_routes(fleet) as own:
            assert code_of(await post(own, {"abort_all": True})) == (400, "model_required")
            assert engine.seen == []
            answer = await post(own, {"abort_all": True, "model": "mb"})
            assert [entry["engine"] for entry in json_of(answer)["results"]] == ["b"]
            answer = await post(own, {"abort_all": True}, pool="pa")
            assert [entry["engine"] for entry in json_of(answer)["results"]] == ["a"]
