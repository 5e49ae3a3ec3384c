"""A whole proxy in the test's loop, over real sockets, with a table file that tests edit."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from steersman.settings import PoolSettings
from steersman_proxy.app import ProxyApp
from steersman_proxy.exchange.observer import Observer
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.engines import Engine
from steersman_proxy.settings import AdapterKind, ProxySettings
from steersman_sim.engine import EngineConfig, SimEngine

ADAPTERS: tuple[AdapterKind, ...] = ("splice", "aiohttp")
"""Every downstream adapter that there is."""

adapter: AdapterKind = ProxySettings().adapter
"""The adapter of the proxies made from now on; the fixture of that name sets it."""


class TableFile:
    """The fleet table on disk. JSON is YAML, so it is written as JSON."""

    def __init__(self, path: Path, rows: list[dict[str, Any]], **pool: Any) -> None:
        self.path = path
        self.rows = rows
        self.pool: dict[str, Any] = {"name": "pool", "model": "sim-model"} | pool
        self.others: list[dict[str, Any]] = []
        self.write()

    def write(self) -> None:
        """Replace the file as a whole, as its writer should."""
        content = {"pools": [self.pool | {"engines": self.rows}, *self.others]}
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(content))
        draft.rename(self.path)

    def set(self, name: str, **changes: Any) -> None:
        """Change a row; ``None`` takes a key out."""
        row = next(row for row in self.rows if row["id"] == name)
        for key, value in changes.items():
            if value is None:
                row.pop(key, None)
            else:
                row[key] = value
        self.write()


class Watching:
    """Stands before the proxy's observer and calls ``on_selected`` at each selection."""

    def __init__(self, inner: Observer, on_selected: Callable[[Engine], None]) -> None:
        self._on_selected = on_selected
        self._selected = inner.selected
        self.unroutable = inner.unroutable
        self.first_byte = inner.first_byte
        self.attempt_failed = inner.attempt_failed
        self.finished = inner.finished
        self.served = inner.served

    def selected(self, engine: Engine, filtered: Mapping[Reason, int]) -> None:
        self._on_selected(engine)
        self._selected(engine, filtered)


class Rig:
    """Sim engines, a table file and a proxy over them."""

    def __init__(
        self,
        engines: dict[str, SimEngine],
        file: TableFile,
        app: ProxyApp,
        client: aiohttp.ClientSession,
    ) -> None:
        self.engines = engines
        self.file = file
        self.app = app
        self.client = client

    @property
    def url(self) -> str:
        return self.app.url

    async def edit(self, name: str, **changes: Any) -> None:
        """Change a row and wait until the proxy has it in force."""
        self.file.set(name, **changes)
        await self.applied()

    async def applied(self) -> None:
        """Wait until the table on disk is in force."""
        wanted = json.loads(self.file.path.read_text())
        rows = {row["id"]: row for pool in wanted["pools"] for row in pool["engines"]}

        def there() -> bool:
            view = self.app.fleet.view
            return (
                view is not None
                and {engine.id for engine in self.app.fleet.engines()} == set(rows)
                and all(_matches(engine, rows[engine.id]) for engine in self.app.fleet.engines())
            )

        await until(there)

    def engine(self, name: str) -> Engine:
        return next(engine for engine in self.app.fleet.engines() if engine.id == name)

    async def idle(self, name: str | None = None) -> None:
        """Wait until nothing is in flight (on one engine)."""
        await until(
            lambda: (
                not any(
                    engine.load.requests
                    for engine in self.app.fleet.engines()
                    if name in (None, engine.id)
                )
            )
        )

    async def generate(self, tokens: int = 4, **headers: str) -> tuple[int, Any, Any]:
        """One buffered request: status, headers, JSON."""
        body = {"text": "hello", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(f"{self.url}/generate", json=body, headers=names) as answer:
            return answer.status, answer.headers, await answer.json(content_type=None)

    async def metrics(self) -> str:
        async with self.client.get(f"{self.app.metrics_url}/metrics") as answer:
            return await answer.text()

    def received(self, name: str, path: str = "/generate") -> int:
        """How many requests an engine got."""
        return len(self.engines[name].journal.of(path))


def _matches(engine: Engine, row: dict[str, Any]) -> bool:
    version = row.get("weightVersion")
    return (
        engine.url == row["url"]
        and engine.row.gate.open == (row.get("gate", "open") == "open")
        and engine.row.control.value == row.get("control", "active")
        and engine.row.version == (None if version in (None, "default") else version)
        and ("trust" not in row or engine.row.trust.value == row["trust"])
        and engine.row.failed == row.get("failed", False)
    )


async def until(condition: Callable[[], bool], *, within: float = 20.0) -> None:
    """Let the loop turn until a condition of this process holds; fails if it never does."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - any state of this process, not one event
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    *,
    engines: dict[str, SimEngine] | None = None,
    pool: Mapping[str, Any] | None = None,
    routing: PoolSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A proxy over given engines."""
    file = TableFile(tmp_path / "table.yaml", rows, **(pool or {}))
    base = ProxySettings(
        port=0,
        metrics_port=0,
        table_file=str(file.path),
        table_poll=0.01,
        access_log=False,
        log_level="error",
        drain=0.0,
        adapter=adapter,
        defaults=routing or PoolSettings(),
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        ProxyApp(msgspec.structs.replace(base, **settings)) as app,
        aiohttp.ClientSession(connector=connector) as client,
    ):
        yield Rig(engines or {}, file, app, client)


@contextlib.asynccontextmanager
async def rig(
    tmp_path: Path,
    versions: Mapping[str, str | None],
    *,
    config: EngineConfig | None = None,
    pool: Mapping[str, Any] | None = None,
    routing: PoolSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Sim engines at the given versions (``None``: unlabelled) and a proxy over them."""
    base = config or EngineConfig(speed=20.0)
    engines: dict[str, SimEngine] = {}
    async with contextlib.AsyncExitStack() as stack:
        rows = []
        for name, version in versions.items():
            labelled = msgspec.structs.replace(base, weight_version=version or "default")
            engine = await stack.enter_async_context(SimEngine(labelled))
            engines[name] = engine
            row = {"id": name, "url": engine.url, "runtime": labelled.runtime.value}
            rows.append(row | ({} if version is None else {"weightVersion": version}))
        yield await stack.enter_async_context(
            running(tmp_path, rows, engines=engines, pool=pool, routing=routing, **settings)
        )


async def refit(rig_: Rig, name: str, version: str) -> None:
    """Change an engine's weights as the guarantees say: close, drain, refit, open."""
    await rig_.edit(name, gate="closed")
    await rig_.idle(name)
    body = {"model_path": "/weights", "weight_version": version}
    url = f"{rig_.engines[name].url}/update_weights_from_disk"
    async with rig_.client.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
    await rig_.edit(name, gate="open", weightVersion=version)
