"""A fleet that is whatever a test says, behind the real API on a real socket."""

import asyncio
import contextlib
import copy
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from steersman.errors import RequestError
from steersman_operator.api.local import LocalApi
from steersman_operator.api.wishes import Edit, Refit, Rollout
from steersman_operator.fleet.spec import Weights
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.locks import FileLock

T = TypeVar("T")
Status = dict[str, Any]


class Refused(RequestError):
    code = "refused"
    status = 409


class NoSuch(RequestError):
    code = "no_such_resource"
    status = 404


class Done(NamedTuple):
    generation: int
    changed: bool = True
    message: str = ""
    target: Weights | None = None


class FakeFleet:
    """What LocalApi needs; ``now`` is the status, ``answer`` what an edit comes to."""

    def __init__(self, status: Status) -> None:
        self.now = status
        self.made = 0
        self.edits: list[Edit] = []
        self.refits: list[Refit] = []
        self.rollouts: list[Rollout] = []
        self.published: list[tuple[str, str]] = []
        self.answer: Done | Exception = Done(2)
        self.on_edit: Callable[[Edit], None] = lambda _: None
        self.reads = 0
        self.on_read: Callable[[], None] = lambda: None
        self.news = asyncio.Event()
        self.hurt: Exception | None = None

    def status(self) -> Status:
        self.made += 1
        if self.hurt is not None:
            raise self.hurt
        return copy.deepcopy(self.now)

    async def edit(self, edit: Edit) -> Done:
        self.edits.append(edit)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.on_edit(edit)
        return self.answer

    async def refit(self, refit: Refit) -> Done:
        self.refits.append(refit)
        return await self._answered()

    async def rollout(self, rollout: Rollout) -> Done:
        self.rollouts.append(rollout)
        return await self._answered()

    async def _answered(self) -> Done:
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def publish(self, name: str, version: str) -> None:
        self.published.append((name, version))
        await self._answered()

    async def read(self) -> None:
        await asyncio.sleep(0)
        self.reads += 1
        self.on_read()

    async def changed(self) -> None:
        await self.news.wait()

    def become(self, status: Status) -> None:
        self.now = status
        news, self.news = self.news, asyncio.Event()
        news.set()


@contextlib.asynccontextmanager
async def serving(fleet: FakeFleet, path: Path) -> AsyncIterator[LocalApi]:
    api = LocalApi(fleet, path=path)
    await api.start()
    try:
        yield api
    finally:
        await api.close()


class Running:
    """The API in a thread of its own, as another process would have it; for commands, which block."""

    def __init__(self, directory: Path, status: Status) -> None:
        self.layout = Layout(directory)
        self.layout.make()
        self.fleet = FakeFleet(status)
        self.lock = FileLock(self.layout.lock)
        self.api: LocalApi | None = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something in its loop, and wait for it."""

        async def within() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(20)

    def begin(self) -> None:
        assert self.lock.take()
        self._thread.start()
        self.serve()

    def serve(self) -> None:
        async def work() -> None:
            self.api = LocalApi(self.fleet, path=self.layout.api)
            await self.api.start()

        self.do(work)

    def leave(self) -> None:
        """The operator is gone; `steersman up` still holds the directory."""

        async def work() -> None:
            assert self.api is not None
            await self.api.close()

        self.do(work)
        self.api = None

    def become(self, status: Status) -> None:
        self.loop.call_soon_threadsafe(self.fleet.become, status)

    def end(self) -> None:
        if self.api is not None:
            self.leave()
        self.lock.release()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.contextmanager
def running(directory: Path, status: Status) -> Iterator[Running]:
    there = Running(directory, status)
    there.begin()
    try:
        yield there
    finally:
        there.end()


# --- a status, made by hand; test_status.py sees that it is shaped as the real one ----------------


def engine(name: str = "e0", **more: Any) -> Status:
    port = 31000 + int("0" + "".join(filter(str.isdigit, name)))
    content = {
        "id": f"127.0.0.1:{port}",
        "name": name,
        "url": f"http://127.0.0.1:{port}",
        "runtime": "sglang",
        "role": "plain",
        "control": "active",
        "desired": "active",
        "gate": "open",
        "takes_requests": more.get("gate", "open") == "open" and not more.get("withheld"),
        "version": "7",
        "trust": "verified",
        "synced": True,
        "phase": "Settled",
        "problem": "",
        "waiting": "",
        "withheld": "",
        "becoming": None,
        "in_flight": None,
        "reachable": True,
        "boot_id": "b1",
        "external": False,
        "leaving": False,
    }
    assert more.keys() <= content.keys()
    return content | more


def paused(name: str = "e0", **more: Any) -> Status:
    return engine(name, control="paused", desired="paused", gate="closed", **more)


def draining(name: str = "e0", waiting: str = "waiting for proxy-0.1 (3 in flight)") -> Status:
    return engine(
        name,
        desired="paused",
        gate="closed",
        phase="Draining",
        problem=waiting,
        waiting=waiting,
        becoming="paused",
        in_flight=3,
    )


def given_up(name: str = "e0", why: str = "not drained within 600 s") -> Status:
    return engine(name, desired="paused", phase="GivenUp", problem=why)


def condition(
    kind: str, status: str = "False", reason: str = "AsExpected", message: str = ""
) -> Status:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def pool(name: str = "qwen", *engines: Status, **more: Any) -> Status:
    ready = all(one["phase"] == "Settled" for one in engines)
    content = {
        "name": name,
        "models": ["Qwen/Qwen3-8B"],
        "default": True,
        "state": "Active",
        "generation": 1,
        "runtime": "sglang",
        "drift": "Observe",
        "on_unreachable_proxy": "Wait",
        "overrides": [],
        "spec": {},
        "file": f"{name}.yaml",
        "line": 3,
        "created": None,
        "manifest_errors": [],
        "fleet_max": "7",
        "target": None,
        "weights": {"synced": 0, "total": 0},
        "rollout_paused": False,
        "conditions": [condition("Ready", str(ready)), condition("Degraded")],
        "counts": {
            "total": len(engines),
            "ready": sum(one["phase"] == "Settled" and not one["withheld"] for one in engines),
            "open": sum(one["takes_requests"] for one in engines),
            "closed": sum(not one["takes_requests"] for one in engines),
            "paused": sum(one["control"] == "paused" for one in engines),
            "asleep": sum(one["control"] == "asleep" for one in engines),
        },
        "engines": list(engines),
    }
    assert more.keys() <= content.keys()
    return content | more


def proxy(uid: str = "proxy-0.1", **more: Any) -> Status:
    content = {
        "uid": uid,
        "boot": "b",
        "connected": True,
        "listed": True,
        "acked": "1.4",
        "heard_age": 0.2,
        "pid": 4711,
        "metrics_url": "http://127.0.0.1:29000",
    }
    assert more.keys() <= content.keys()
    return content | more


def weight_version(name: str = "qwen-7", **more: Any) -> Status:
    content: Status = {
        "name": name,
        "model": "Qwen/Qwen3-8B",
        "version": "7",
        "ordinal": None,
        "source": "Disk /models/qwen-7",
        "digest": None,
        "spec": {},
        "file": "versions.yaml",
        "line": 1,
        "created": None,
    }
    assert more.keys() <= content.keys()
    return content | more


def fleet(*pools: Status, **more: Any) -> Status:
    content = {
        "operator": {
            "pid": 4710,
            "term": 1,
            "leading": True,
            "published": True,
            "epoch": "1.4",
            "uptime": 60.0,
            "metrics_url": "http://127.0.0.1:28000",
        },
        "endpoint": "http://127.0.0.1:30000",
        "proxies": [],
        "errors": [],
        "warnings": [],
        "pools": list(pools),
        "weight_versions": [],
    }
    assert more.keys() <= content.keys()
    return content | more
