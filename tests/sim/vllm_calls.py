"""The calls of a vLLM engine that tests make again and again."""

from typing import Any

from tests.sim.support import Client, Reply

GENERATE = "/inference/v1/generate"


async def flag(client: Client, path: str) -> bool:
    (value,) = (await client.get(path)).json.values()
    assert isinstance(value, bool)
    return value


async def reload_weights(client: Client, path: str = "/w/7") -> Reply:
    body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
    return await client.post("/collective_rpc", body)


async def label(client: Client, version: str) -> None:
    reply = await client.post("/update_weight_version", {"new_version": version})
    assert reply.json == {"success": True, "new_version": version}


def spans(reply: Reply) -> Any:
    return reply.json["choices"][0]["weight_versions"]
