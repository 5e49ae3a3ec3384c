"""New weights for real engines: what they generate is what their name says, at every moment."""

import asyncio
import re
from pathlib import Path

import pytest

from steersman_operator.engines.vllm_refit import digest_of
from tests.real_engine.conftest import PROMPT, Checkpoints
from tests.real_engine.engines import RealEngine
from tests.real_engine.fleet import (
    POOL,
    Answer,
    Traffic,
    done,
    fleet_of,
    generate,
    traffic,
)
from tests.up.fleet import UpFleet, engine_of, engines_of

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

TOKENS = 60
"""Of a request; so that some are in flight whenever something is changed."""

LONG = PROMPT * 12
"""Several blocks of the cache."""

RELOAD, LABEL, RESET = "/collective_rpc", "/update_weight_version", "/reset_prefix_cache"
CHANGES = {"/pause", "/resume", "/sleep", "/wake_up", RELOAD, LABEL, RESET}
WORK = "/v1/completions"


def long_texts(engine: RealEngine, checkpoints: Checkpoints) -> dict[str, str]:
    """What each version makes of the prompt, at the length of the traffic."""
    found = {}
    for version, weights in (("2", checkpoints.second), ("1", checkpoints.first)):
        engine.load(weights.path)
        found[version] = engine.greedy(PROMPT, tokens=TOKENS)
    return found


def steps(engine: RealEngine, since: int) -> list[str]:
    """The calls that changed it, in their order, as `path` or `path?tags`."""
    found = []
    for received in engine.received(since):
        path = received.target.partition("?")[0]
        if path in CHANGES:
            tags = re.findall(r"tags=(\w+)", received.target)
            found.append(f"{path}?{'+'.join(tags)}" if tags else path)
    return found


def check_every_answer(clients: Traffic, texts: dict[str, str]) -> None:
    """Nobody lost anything, and every text is that of the version on its stamp."""
    assert clients.broken == []
    assert {(one.status, one.code) for one in clients.answers} == {(200, None)}
    assert {(one.version, one.text, one.finish, one.mixed) for one in clients.answers} == {
        (version, text, "length", False) for version, text in texts.items()
    }


def stale(clients: Traffic, newest: str) -> list[Answer]:
    """Old answers to ``latest-only`` that were asked for after somebody had read a new one."""
    seen = min(one.ended for one in clients.good if one.version == newest)
    return [
        one
        for one in clients.good
        if one.policy == "latest-only" and one.began > seen and one.version != newest
    ]


async def all_show(fleet: UpFleet, version: str) -> None:
    await fleet.until(
        lambda now: all(
            (one["version"], one["trust"], one["gate"]) == (version, "verified", "open")
            for one in engines_of(now)
        )
    )


async def one_is_uncertain(fleet: UpFleet) -> None:
    """The engine that went first is closed, and the other one serves as it did."""
    status = await fleet.until(
        lambda now: any(one["trust"] == "uncertain" for one in engines_of(now))
    )
    assert sorted((one["trust"], one["gate"]) for one in engines_of(status)) == [
        ("uncertain", "closed"),
        ("verified", "open"),
    ]


async def refit(fleet: UpFleet, version: str, path: Path, *more: str) -> None:
    said = await done(fleet, "refit", POOL, "--version", version, "--path", str(path), *more)
    assert (
        said[-1] == f"rolloutengine/{POOL} successfully rolled out: 2 of 2 engines have {version}"
    )


async def test_weights_from_disk_are_rolled_out_under_traffic(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    texts = long_texts(engines[0], checkpoints)
    marks = [engine.mark() for engine in engines]
    async with (
        fleet_of(engines) as fleet,
        traffic(fleet, PROMPT, tokens=TOKENS, policies=("any", "latest-only")) as clients,
    ):
        await clients.until(6)
        await refit(fleet, "2", checkpoints.second.path)
        assert [engine.version for engine in engines] == ["2", "2"]
        await clients.until(6)
        said = await done(fleet, "rollout", "status", POOL)
        assert "2 of 2 engines have 2" in said[-1]

    check_every_answer(clients, texts)
    assert stale(clients, "2") == []
    assert [engine.greedy(PROMPT) for engine in engines] == [checkpoints.second.text] * 2
    for engine, mark in zip(engines, marks, strict=True):
        assert steps(engine, mark)[:4] == ["/pause", RELOAD, RESET, LABEL]
        assert trespasses(engine, mark) == []


def trespasses(engine: RealEngine, since: int) -> list[str]:
    """Requests that ended on an engine between its pause and its resume."""
    found, out = [], False
    for received in engine.received(since):
        path = received.target.partition("?")[0]
        out = {"/pause": True, "/resume": False, "/wake_up": False}.get(path, out)
        if path == WORK and out:
            found.append(str(received))
    return found


async def test_what_was_cached_with_the_old_weights_is_not_used(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    engines[0].load(checkpoints.second.path)
    right = engines[0].greedy(LONG)
    engines[0].load(checkpoints.first.path)
    for engine in engines:
        assert engine.greedy(LONG) != right
    async with fleet_of(engines) as fleet:
        await refit(fleet, "2", checkpoints.second.path)
    assert [engine.greedy(LONG) for engine in engines] == [right] * 2


async def test_in_place_requests_go_on_with_the_new_weights_and_say_so(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """Nobody is waited for; what is in flight is computed anew and then continued."""
    engine = engines[0]
    tokens = engine.tokens(PROMPT)
    extra = "  rollout: {mode: InPlace, pauseMode: Recompute}\n"
    async with fleet_of([engine], extra=extra) as fleet:
        for number, weights in enumerate([checkpoints.second, checkpoints.third] * 4, start=2):
            version, path = str(number), str(weights.path)
            long, _ = await asyncio.gather(
                generate(fleet, tokens, count=1900),
                done(fleet, "refit", POOL, "--version", version, "--path", path),
            )
            assert long.version == long.spans[-1][0]
            assert long.mixed == (len(long.spans) > 1)
            assert (long.spans[0][1], long.spans[-1][2]) == (0, 1900)
            assert await asyncio.to_thread(engine.greedy, PROMPT) == weights.text
            # A vLLM that generates may leave the pause lying for as long as that takes.
            if long.mixed:
                return
    pytest.fail("no refit came within a request")


async def test_weights_of_a_trainer_are_named_and_nothing_else(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """The label alone: the trainer, which is this test, writes the weights itself."""
    texts = long_texts(engines[0], checkpoints)
    async with (
        fleet_of(engines) as fleet,
        traffic(fleet, PROMPT, tokens=TOKENS) as clients,
    ):
        await clients.until(4)
        await done(fleet, "refit", POOL, "--version", "2")
        marks = [engine.mark() for engine in engines]
        status = await fleet.status()
        waiting = [one["name"] for one in engines_of(status) if one["phase"] == "AwaitingTrainer"]
        print(f"waiting for the trainer: {waiting}")
        for engine in engines:
            await asyncio.to_thread(engine.good, "GET", "/health")
            assert await asyncio.to_thread(lambda one=engine: one.paused)
            body = {
                "method": "reload_weights",
                "kwargs": {"weights_path": str(checkpoints.second.path)},
            }
            await asyncio.to_thread(engine.good, "POST", RELOAD, body)
        await done(fleet, "publish", POOL, "--version", "2")
        await all_show(fleet, "2")
        await clients.until(6)

    check_every_answer(clients, texts)
    for engine, mark in zip(engines, marks, strict=True):
        assert steps(engine, mark).count(RELOAD) == 1, "the operator has loaded something itself"
        assert LABEL in steps(engine, mark)
        assert engine.version == "2"


async def test_a_version_that_appears_behind_our_back_is_in_the_table_within_two_periods(
    engines: list[RealEngine],
) -> None:
    loop = asyncio.get_running_loop()
    async with fleet_of(engines) as fleet:
        await all_show(fleet, "1")
        for number, engine in enumerate(engines):
            label = {"new_version": "7"}
            await asyncio.to_thread(engine.good, "POST", LABEL, label)
            began = loop.time()
            await fleet.until(lambda now, n=number: engine_of(now, f"e{n}")["version"] == "7")
            took = loop.time() - began
            print(f"e{number}: seen after {took:.2f} s")
            assert took < 2 * 2.0 + 0.5
        await all_show(fleet, "7")


async def test_an_engine_that_sleeps_gets_new_weights_when_it_is_woken(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """Weights first, then what they are, then the memory of the requests."""
    engine = engines[0]
    async with fleet_of([engine]) as fleet:
        await done(fleet, "sleep", POOL)
        mark = engine.mark()
        said = await done(
            fleet, "refit", POOL, "--version", "2", "--path", str(checkpoints.second.path)
        )
        assert said[-1].endswith("1 asleep, and load it when they are woken")
        assert steps(engine, mark) == []

        await done(fleet, "wake", POOL)
        await all_show(fleet, "2")
        assert [one for one in steps(engine, mark) if one != "/pause"] == [
            "/wake_up?weights",
            RELOAD,
            RESET,
            LABEL,
            "/wake_up?kv_cache",
        ]
    assert engine.greedy(PROMPT) == checkpoints.second.text


async def test_a_path_with_nothing_in_it_harms_one_engine_and_no_request(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """vLLM has given the weights up by then; the next request would end the engine."""
    texts = long_texts(engines[0], checkpoints)
    async with (
        fleet_of(engines) as fleet,
        traffic(fleet, PROMPT, tokens=TOKENS) as clients,
    ):
        await clients.until(4)
        path = str(checkpoints.empty)
        await done(fleet, "refit", POOL, "--version", "3", "--path", path, "--no-wait")
        await one_is_uncertain(fleet)
        await clients.until(4)
        await one_is_uncertain(fleet)
        await refit(fleet, "2", checkpoints.second.path)
        await clients.until(6)

    check_every_answer(clients, texts)
    assert all(engine.alive() for engine in engines)
    assert [engine.greedy(PROMPT) for engine in engines] == [checkpoints.second.text] * 2


async def test_a_checksum_finds_what_the_engine_does_not_notice(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """A checkpoint with half of its layers is loaded with a 200."""
    engines[0].load(checkpoints.second.path)
    checker = ("POST", "/weight_checker", {"action": "checksum"})
    whole = digest_of(engines[0].good(*checker)["checksums"])
    engines[0].load(checkpoints.first.path)
    async with fleet_of(engines) as fleet:
        half = ("--path", str(checkpoints.half), "--checksum", whole)
        await done(fleet, "refit", POOL, "--version", "2", *half, "--no-wait")
        await one_is_uncertain(fleet)
        await refit(fleet, "3", checkpoints.second.path, "--checksum", whole)
    assert [engine.greedy(PROMPT) for engine in engines] == [checkpoints.second.text] * 2


async def test_an_engine_that_dies_and_comes_back_gets_the_weights_before_any_request(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    """It starts with those of its command line, which are others, and has no name for them."""
    texts = long_texts(engines[0], checkpoints)
    del texts["1"]
    async with fleet_of(engines) as fleet:
        await refit(fleet, "2", checkpoints.second.path)
        # With rests: starting an engine is work enough for a small machine.
        async with traffic(fleet, PROMPT, tokens=TOKENS, clients=2, rest=0.5) as clients:
            await clients.until(4)
            await asyncio.to_thread(engines[1].kill)
            await fleet.until(lambda now: engine_of(now, "e1")["gate"] == "closed")
            mark = engines[1].mark()
            engines[1].start()
            await asyncio.to_thread(engines[1].wait)
            await fleet.until(lambda now: engine_of(now, "e1")["gate"] == "open", within=120)
            await clients.until(6)

    first = [one.target for one in engines[1].received(mark)]
    assert RELOAD in first and first.index(RELOAD) < first.index(WORK)
    assert {(one.version, one.text) for one in clients.good} == set(texts.items())
    # Those that were in flight on it are lost with it, and nothing else.
    assert {one.code for one in clients.answers if one.status != 200} <= {
        "upstream_error",
        "upstream_body_incomplete",
        "upstream_unreachable",
    }
    assert engines[1].greedy(PROMPT) == checkpoints.second.text
