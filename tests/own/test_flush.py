"""``/flush_cache``, which trainers poll until it says 200."""

import pytest

from steersman.engine import Runtime
from tests.observation.support import CLOSED, fake_engine, fleet_of, row
from tests.own.support import code_of, json_of, own_routes

DONE = (200, "Cache flushed.")
BUSY = (400, "Flush cache failed.")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_all_engines_flushed(method):
    async with fake_engine(flush_cache=DONE) as one, fake_engine(flush_cache=DONE) as two:
        async with own_routes(fleet_of(row("e1", url=one.url), row("e2", url=two.url))) as own:
            answer = await own("/flush_cache?timeout=3&model=main-model", method=method)
        assert answer.status == 200
        assert one.targets() == two.targets() == [f"{method} /flush_cache?timeout=3"]
    assert [result["flushed"] for result in json_of(answer)["results"]] == [True, True]


async def test_a_trainer_polls_until_nobody_is_busy():
    async with (
        fake_engine(flush_cache=DONE) as one,
        fake_engine(flush_cache=BUSY) as two,
        own_routes(fleet_of(row("e1", url=one.url), row("e2", url=two.url))) as own,
    ):
        answer = await own("/flush_cache")
        assert code_of(answer) == (400, "cache_busy")
        results = json_of(answer)["results"]
        assert [result["flushed"] for result in results] == [True, False]
        assert results[1]["message"] == "Flush cache failed."
        two.replies["/flush_cache"] = DONE
        assert (await own("/flush_cache")).status == 200


async def test_vllm_refuses_within_a_200():
    async with fake_engine(reset_prefix_cache=(200, {"success": False})) as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            assert code_of(await own("/flush_cache")) == (400, "cache_busy")
            engine.replies["/reset_prefix_cache"] = (200, {"success": True})
            assert (await own("/flush_cache")).status == 200
            engine.replies["/reset_prefix_cache"] = (200, "")
            assert (await own("/flush_cache")).status == 200
        assert set(engine.targets()) == {"POST /reset_prefix_cache"}


async def test_failures_weigh_more_than_busyness(free_port):
    dead = row("dead", url=f"http://127.0.0.1:{free_port}")
    async with fake_engine(flush_cache=BUSY) as busy, fake_engine(flush_cache=(500, "")) as bad:
        for other in (dead, row("bad", url=bad.url)):
            async with own_routes(fleet_of(row("busy", url=busy.url), other)) as own:
                answer = await own("/flush_cache")
            assert code_of(answer) == (502, "upstream_error")
            assert [entry["engine"] for entry in json_of(answer)["failed"]] == [other.id]


async def test_vllm_without_dev_mode_says_what_is_missing():
    async with fake_engine() as engine:
        fleet = fleet_of(row("v", url=engine.url, runtime=Runtime.VLLM))
        async with own_routes(fleet) as own:
            answer = await own("/flush_cache")
    assert code_of(answer) == (502, "upstream_error")
    assert "VLLM_SERVER_DEV_MODE" in json_of(answer)["failed"][0]["message"]


async def test_an_engine_of_unknown_runtime_is_asked_both_ways():
    async with fake_engine(reset_prefix_cache=(200, {"success": True})) as engine:
        fleet = fleet_of(row("u", url=engine.url, runtime=Runtime.UNKNOWN))
        async with own_routes(fleet) as own:
            assert (await own("/flush_cache")).status == 200
        assert engine.targets() == ["GET /flush_cache", "POST /reset_prefix_cache"]


async def test_closed_engines_are_skipped_and_told_of():
    async with fake_engine(flush_cache=DONE) as engine:
        closed = row("closed", url=engine.url, gate=CLOSED)
        async with own_routes(fleet_of(closed, row("e1", url=engine.url))) as own:
            answer = await own("/flush_cache")
            assert answer.status == 200
            assert json_of(answer)["skipped"][0]["engine"] == "closed"
        assert len(engine.seen) == 1
        async with own_routes(fleet_of(closed)) as own:
            assert code_of(await own("/flush_cache")) == (503, "no_available_workers")
        assert len(engine.seen) == 1
