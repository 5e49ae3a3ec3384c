"""The control calls of an SGLang engine that tests make again and again."""

from tests.sim.support import Client, Reply


async def pause(client: Client, mode: str) -> Reply:
    return await client.post("/pause_generation", {"mode": mode})


async def resume(client: Client) -> None:
    reply = await client.post("/continue_generation", {})
    assert reply.json == {"message": "Generation continued successfully.", "status": "ok"}


async def frozen(client: Client) -> None:
    """Wait until the scheduler has acted on a pause."""
    scheduler = client.engine.core.ranks[0].scheduler
    await client.engine.until(lambda: scheduler.hold.name == "EVERYTHING")


async def refit(client: Client, version: str | None = "7", **more: object) -> Reply:
    body = {"model_path": "/w/7", "weight_version": version, **more}
    return await client.post("/update_weights_from_disk", body)


async def version(client: Client) -> tuple[str, str]:
    """The tokenizer's version and the scheduler's."""
    live = (await client.get("/model_info")).json["weight_version"]
    states = (await client.get("/server_info")).json["internal_states"]
    return live, states[0]["weight_version"]
