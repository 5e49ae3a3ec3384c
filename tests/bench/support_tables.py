"""Fleet tables as an operator makes them, of any size."""

import msgspec

from steersman.engine import EngineRow, Gate, Runtime, Trust
from steersman.settings import PoolSettings
from steersman.table import Epoch, PoolRow, Table

POOL = "policy-model"
BOOT = "sglang-3f1c9a0b7d2e4f68"


def url_of(number: int) -> str:
    """A host and port of its own for each engine, as long as they are in a real fleet."""
    return f"http://10.{number // 65536}.{number // 256 % 256}.{number % 256}:30000"


def row_of(number: int) -> EngineRow:
    """One engine that serves the newest version, and has been paused a few times before."""
    url = url_of(number)
    return EngineRow(
        id=url.removeprefix("http://"),
        url=url,
        pool=POOL,
        runtime=Runtime.SGLANG,
        gate=Gate(open=True, count=12),
        version="step-1200",
        trust=Trust.VERIFIED,
        boot_id=BOOT,
    )


def table_of(engines: int) -> Table:
    """One pool; every eighth engine is one version behind."""
    rows = [row_of(number) for number in range(engines)]
    for number in range(7, engines, 8):
        rows[number] = msgspec.structs.replace(rows[number], version="step-1190")
    pool = PoolRow(
        name=POOL,
        models=("policy-model", "org/policy-model-7b"),
        fleet_max="step-1200",
        settings=PoolSettings(),
    )
    return Table(epoch=Epoch(1, 1), pools=(pool,), engines=tuple(rows))


def next_table(table: Table, *, engine: int) -> Table:
    """The table after it, in which the gate of one engine has changed."""
    row = table.engines[engine]
    gate = Gate(open=not row.gate.open, count=row.gate.count + 1)
    rows = list(table.engines)
    rows[engine] = msgspec.structs.replace(row, gate=gate)
    epoch = Epoch(table.epoch.term, table.epoch.seq + 1)
    return Table(epoch=epoch, pools=table.pools, engines=tuple(rows))
