"""Parts of a status while weights are on their way."""

from typing import Any

from tests.api.support import Status, engine, fleet, pool

WAITING = "waiting for proxy-0.1 (3 in flight)"


def target(version: str = "42", **more: Any) -> Status:
    """What the engines are to have."""
    content = {
        "version": version,
        "source": "Disk",
        "path": f"/ckpt/{version}",
        "nonce": "",
        "checksum": "",
    }
    assert more.keys() <= content.keys()
    return content | more


def having(name: str = "e0", version: str = "42", **more: Any) -> Status:
    """An engine that has them, and serves."""
    return engine(name, version=version, **more)


def lacking(name: str = "e0", version: str | None = "41", **more: Any) -> Status:
    """One that does not have them yet."""
    return engine(name, version=version, synced=False, **more)


def loading(name: str = "e0", phase: str = "Draining", waiting: str = WAITING) -> Status:
    """One on its way."""
    return lacking(
        name, gate="closed", phase=phase, problem=waiting, waiting=waiting, becoming="active"
    )


def awaiting(name: str = "e0") -> Status:
    """One that waits for the trainer."""
    return loading(name, "AwaitingTrainer", "waiting for the transfer of 42")


def failed(name: str = "e0", why: str = "the engine failed to load the weights: no") -> Status:
    """One that nobody tries to load any more."""
    return lacking(name, gate="closed", trust="uncertain", phase="GivenUp", problem=why)


def sleeping(name: str = "e0") -> Status:
    """One that gets them when it is woken."""
    return lacking(name, control="asleep", desired="asleep", gate="closed")


def rolling(
    *engines: Status, to: Status | None = None, paused: bool = False, **more: Any
) -> Status:
    """A fleet of one pool whose engines are to have weights."""
    to = target() if to is None else to
    name = more.pop("name", f"qwen-{to['version']}")
    spec = {"model": "Qwen/Qwen3-8B", "weightVersionRef": {"name": name}}
    counts = {"synced": sum(one["synced"] for one in engines), "total": len(engines)}
    content = {"generation": 2, "spec": spec, "target": to, "rollout_paused": paused}
    return fleet(pool("qwen", *engines, **(content | {"weights": counts} | more)))
