"""Wishes for weights over the local API, on a real unix socket."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from steersman.errors import NotAwaiting
from steersman_operator.fleet.spec import SourceKind, Weights
from tests.api.asking import error_of
from tests.api.support import Done, FakeFleet

WEIGHTS = Weights(version="42", source=SourceKind.DISK, path="/ckpt/42", nonce="n")


async def test_a_refit_answers_what_the_pool_is_to_have(
    http: aiohttp.ClientSession, there: FakeFleet
) -> None:
    there.answer = Done(4, changed=True, message="qwen is to have 42 now", target=WEIGHTS)
    wish = {"name": "qwen", "version": "42", "path": "/ckpt/42", "checksum": "8c", "nonce": "n"}

    async with http.post("/v1/refit", json=wish) as answer:
        assert answer.status == 200
        assert await answer.json() == {
            "generation": 4,
            "changed": True,
            "message": "qwen is to have 42 now",
            "target": {
                "version": "42",
                "source": "Disk",
                "path": "/ckpt/42",
                "nonce": "n",
                "checksum": "",
            },
        }
    async with http.post("/v1/refit", json={"name": "qwen"}) as answer:
        assert answer.status == 200
    first, second = there.refits
    assert msgspec.to_builtins(first) == wish
    assert msgspec.to_builtins(second) == dict.fromkeys(wish) | {"name": "qwen"}


@pytest.mark.parametrize("verb", ["pause", "resume", "undo"])
async def test_a_verb_of_a_rollout(
    http: aiohttp.ClientSession, there: FakeFleet, verb: str
) -> None:
    there.answer = Done(4, changed=False, message="so")
    wish = {"name": "qwen", "verb": verb, "to": "41", "since": "qwen-42"}

    async with http.post("/v1/rollout", json=wish) as answer:
        assert await answer.json() == {
            "generation": 4,
            "changed": False,
            "message": "so",
            "target": None,
        }
    assert [msgspec.to_builtins(found) for found in there.rollouts] == [wish]


async def test_a_version_is_published(http: aiohttp.ClientSession, there: FakeFleet) -> None:
    async with http.post("/v1/publish", json={"name": "qwen", "version": "42"}) as answer:
        assert (answer.status, await answer.json()) == (200, {})
    assert there.published == [("qwen", "42")]
    there.answer = NotAwaiting("no engine of qwen waits for 43")
    async with http.post("/v1/publish", json={"name": "qwen", "version": "43"}) as answer:
        assert await error_of(answer) == (409, "not_awaiting", "no engine of qwen waits for 43")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("refit", {}, "the body is not a refit: "),
        ("refit", {"name": "qwen", "version": 42}, "the body is not a refit: "),
        ("refit", {"name": "qwen", "paht": "/w"}, "the body is not a refit: "),
        ("rollout", {"name": "qwen", "verb": "stop"}, "the body is not a verb of a rollout: "),
        ("publish", {"name": "qwen"}, "the body is not a version to publish: "),
    ],
)
async def test_what_is_no_wish_for_weights_reaches_nobody(
    http: aiohttp.ClientSession, there: FakeFleet, path: str, body: dict[str, Any], said: str
) -> None:
    async with http.post(f"/v1/{path}", json=body) as answer:
        status, code, message = await error_of(answer)
    assert (status, code) == (422, "invalid_edit")
    assert message.startswith(said)
    assert (there.refits, there.rollouts, there.published) == ([], [], [])


async def test_a_refit_goes_on_when_whoever_asked_has_left(
    http: aiohttp.ClientSession, there: FakeFleet
) -> None:
    begun, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    whole = there.refit

    async def slowly(refit: Any) -> Done:
        begun.set()
        await go.wait()
        result = await whole(refit)
        done.set()
        return result

    there.refit = slowly  # type: ignore[method-assign]
    asking = asyncio.ensure_future(http.post("/v1/refit", json={"name": "qwen"}))
    await begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go.set()

    await asyncio.wait_for(done.wait(), 10)
    assert len(there.refits) == 1
