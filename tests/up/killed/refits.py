"""What is particular to refits: how they are asked for, what a trainer does, what is judged."""

import itertools
from typing import Any

import aiohttp

from steersman_sim.engine import Runtime, SimEngine
from tests.up.killed.cases import PATH, TRANSFER, Case
from tests.up.killed.journals import called, misstamped

BEFORE = "7"
"""The version that the engine was launched with."""

INFO = {Runtime.SGLANG: "/model_info", Runtime.VLLM: "/weight_info"}


def reference(case: Case) -> str:
    """The lines in the spec of a pool that ask for the weights."""
    return f"  weightVersionRef: {{name: m-{case.operation.version}}}\n"


def weight_version(case: Case) -> str:
    """A document with the weights."""
    return f"""\
---
apiVersion: rollout.steersman.io/v1alpha1
kind: WeightVersion
metadata:
  name: m-{case.operation.version}
spec:
  model: m
  version: "{case.operation.version}"
  source:
    {case.operation.source}
"""


def launched_with(case: Case) -> tuple[str, str]:
    """The versions of the two engines: the second one has what the first one is to get.

    So it serves on, and the intent that a dead operator leaves is that of the first one alone.
    """
    return BEFORE, case.operation.version or BEFORE


def has_loaded(engine: SimEngine, version: str) -> bool:
    """Whether all of an engine's memory has the weights from disk; SGLang shows that, too."""
    core: Any = engine.core
    loaded = all(rank.weights.weights.source == f"disk:{PATH}" for rank in core.ranks)
    return loaded and (engine.config.runtime is Runtime.VLLM or core.version == version)


async def transfer(engine: SimEngine, client: aiohttp.ClientSession) -> None:
    """What a trainer does that leaves the name to Steersman."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("/init_weight_transfer_engine", {"init_info": {}}),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {}}),
        ("/finish_weight_update", {}),
    ]
    if engine.config.runtime is Runtime.SGLANG:
        steps = [("/update_weights_from_ipc", {"zmq_handles": {"gpu": "handle"}})]
    for path, body in steps:
        async with client.post(engine.url + path, json=body) as answer:
            assert answer.status == 200, await answer.text()


async def publish(case: Case, api: aiohttp.ClientSession) -> None:
    """The trainer says that it is done."""
    body = {"name": "m", "version": case.operation.version}
    async with api.post("http://fleet/v1/publish", json=body) as answer:
        assert answer.status == 200, await answer.text()


async def shown(engine: SimEngine, client: aiohttp.ClientSession) -> str:
    """The version that an engine tells."""
    async with client.get(engine.url + INFO[engine.config.runtime]) as answer:
        return str((await answer.json())["weight_version"])


async def stamp(
    url: str, engine: SimEngine, client: aiohttp.ClientSession, *, path: str, body: dict[str, Any]
) -> str | None:
    """The version that a client reads on an answer of an engine."""
    headers = {"x-smg-target-worker": engine.url}
    async with client.post(url + path, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return answer.headers.get("x-smg-weight-version")


def judge(case: Case, engines: list[SimEngine]) -> None:
    """What the engine was told, in which order, and which weights made what it answered."""
    engine, version = engines[0], case.operation.version
    told = called(engine)
    # A pause and a resume may be repeated; a load may be only where its outcome was unknown.
    once = [call for number, call in enumerate(told) if told[:number][-1:] != [call]]
    load = "label" if case.operation is TRANSFER else "refit"
    label = ["label"] if load == "refit" and case.runtime is Runtime.VLLM else []
    assert once == ["pause", load, *label, "resume"], told
    assert told.count("label") == int(load == "label" or bool(label)), told
    loads = engine.journal.of(case.route)
    for earlier, later in itertools.pairwise(loads):
        assert earlier.cut or (earlier.ended is not None and earlier.ended <= later.arrived)
    assert [misstamped(one, BEFORE, version) for one in engines] == [[], []]
    made = {span.version for one in engine.journal.generations() for span in one.truth}
    assert made == {BEFORE, version}
