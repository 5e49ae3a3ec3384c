"""A fleet, a context and a recorder, without any I/O."""

from collections.abc import Mapping
from typing import Any

import msgspec

from steersman.clock import FakeClock
from steersman.engine import EngineRow, Gate, Trust
from steersman.settings import PoolSettings
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import ExchangeRecord, Failure, RequestHead, Respond
from steersman_proxy.exchange.observer import Served
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.settings import ProxySettings


class Recorder:
    """An observer and a health sink that write down what they are told."""

    def __init__(self) -> None:
        self.records: list[ExchangeRecord] = []
        self.chosen: list[str] = []
        self.filtered: list[dict[str, int]] = []
        self.nobody = 0
        self.first_bytes: list[float] = []
        self.failures: list[Failure] = []
        self.unreachable: list[str] = []
        self.signs = 0

    def selected(self, engine: Engine, filtered: Mapping[Reason, int]) -> None:
        self.chosen.append(engine.id)
        self.filtered.append({reason.value: count for reason, count in filtered.items()})

    def unroutable(self, filtered: Mapping[Reason, int]) -> None:
        self.nobody += 1

    def first_byte(self, engine: Engine, seconds: float) -> None:
        self.first_bytes.append(seconds)

    def attempt_failed(self, engine: Engine, failure: Failure) -> None:
        self.failures.append(failure)

    def finished(self, record: ExchangeRecord) -> None:
        self.records.append(record)

    def served(
        self, request: Served, now: float, *, route: str, model: str | None, duration: float
    ) -> None:
        record = request.record(now)
        assert (record.route, record.model, record.duration) == (route, model, duration)
        assert (record.status, record.streaming, record.mixed, record.error) == (
            200,
            False,
            False,
            None,
        )
        self.records.append(record)

    def connect_failed(self, engine: Engine) -> None:
        self.unreachable.append(engine.id)

    def reached(self, engine: Engine) -> None:
        self.signs += 1


def row(name: str, version: str | None = "7", *, pool: str = "p", **more: Any) -> EngineRow:
    open_ = more.pop("open", True)
    trust = more.pop("trust", Trust.UNKNOWN if version is None else Trust.VERIFIED)
    return EngineRow(
        id=name,
        url=f"http://{name}:1",
        pool=pool,
        version=version,
        trust=trust,
        gate=Gate(open=open_),
        **more,
    )


def table(*rows: EngineRow, seq: int = 1, fleet_max: str | None = "7") -> Table:
    names = dict.fromkeys(engine.pool for engine in rows)
    pools = tuple(
        PoolRow(name=name, models=(f"model-{name}",), fleet_max=fleet_max) for name in names
    )
    return Table(epoch=Epoch(0, seq), pools=pools, engines=rows)


class World:
    """One proxy's inside."""

    def __init__(
        self,
        *rows: EngineRow,
        fleet_max: str | None = "7",
        pool: PoolSettings | None = None,
        **settings: Any,
    ) -> None:
        self.clock = FakeClock()
        self.settings = ProxySettings(defaults=pool or PoolSettings(), **settings)
        self.fleet = Fleet(
            clock=self.clock,
            defaults=self.settings.defaults,
            pool_settings=self.settings.pools,
            rl_enabled=self.settings.rl_enabled,
        )
        self.recorder = Recorder()
        ids = iter(range(1, 1_000_000))
        self.context = Context(
            fleet=self.fleet,
            settings=self.settings,
            observer=self.recorder,
            health=self.recorder,
            clock=self.clock,
            new_request_id=lambda: f"id-{next(ids)}",
        )
        self.seq = 0
        if rows:
            self.apply(*rows, fleet_max=fleet_max)

    def apply(self, *rows: EngineRow, fleet_max: str | None = "7") -> None:
        self.seq += 1
        self.fleet.apply(table(*rows, seq=self.seq, fleet_max=fleet_max))

    def engine(self, name: str) -> Engine:
        return next(engine for engine in self.fleet.engines() if engine.id == name)

    @property
    def in_flight(self) -> int:
        return sum(engine.load.requests for engine in self.fleet.engines())

    def exchange(self, path: str = "/generate", method: str = "POST", **headers: str) -> Exchange:
        pairs = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        return Exchange(self.context, RequestHead(method, path, pairs))


def error_of(respond: object) -> tuple[int, str]:
    """Status and code of an answer of ours."""
    assert isinstance(respond, Respond), respond
    return respond.status, msgspec.json.decode(respond.body)["error"]["code"]


def header(headers: tuple[tuple[bytes, bytes], ...], name: str) -> str | None:
    wanted = name.encode()
    return next((value.decode() for key, value in headers if key == wanted), None)
