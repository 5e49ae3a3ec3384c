"""How long it takes from an edit until no proxy starts a request by the table before it.

    python -m tests.bench.bench_control [--quick] [--json FILE]

Proxies are processes of their own, with the control client and the routing fleet of the real proxy,
connected over a local socket; the operator (core, shell, records, control server) is this process.
Only the engines are in the mind: always idle, and whatever they are asked succeeds at once.

An *edit* is a changed pool as it reaches the operator's core; the *last ack* is the moment in which
the core has taken in the last proxy's acknowledgement of the table that the edit led to.

* *close one*: one engine is to be paused; the table that closes its gate.
* *open one*: it is to be active again; the table that opens its gate, so after it was resumed.
  Openings are in no hurry: they wait for others, up to a tenth of a second.
* *close all*, *open all*: the same for the whole pool.
* *all paused*: from that edit until the last engine is paused, read back and written down.

All processes share the cores of the machine: with more proxies than cores their turns come one
after the other, which they would not on machines of their own.

The goal is *close one* below 50 ms (p99) with 4 proxies and 64 engines.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from steersman.engine import Control
from steersman.table import Epoch, Table
from steersman_operator.fleet.commands import Command, Publish
from steersman_operator.fleet.events import Acked, Event
from steersman_operator.fleet.state import State
from steersman_operator.shell.observer import ShellObserver
from tests.bench.support import arguments, conclude, spread
from tests.bench.support_operator import IdleEngines, OperatorSide, operator_side, specs
from tests.bench.support_proxy import proxy_processes

PROXIES = (1, 4, 16)
ENGINES = (8, 64, 512)
GOAL_AT = (4, 64)
GOAL = 50.0
"""Milliseconds."""
EDITS = 200
"""Of one engine, for each size of the fleet."""
POOL_EDITS = 10
FOLDERS = (
    "dataplane/steersman",
    "dataplane/steersman_proxy/control",
    "dataplane/steersman_proxy/routing",
    "operator/steersman_operator/control",
    "operator/steersman_operator/fleet",
    "operator/steersman_operator/shell",
)
MILLI = 1e-3


class LastAck(ShellObserver):
    """Waits for every proxy to acknowledge the first table of which something is true."""

    def __init__(self) -> None:
        self._wanted: Callable[[Table], bool] | None = None
        self._epoch: Epoch | None = None
        self._missing: set[str] = set()
        self._at: asyncio.Future[float] | None = None

    def expect(self, wanted: Callable[[Table], bool], *, proxies: Sequence[str]) -> None:
        """Wait for such a table from now on."""
        self._wanted, self._epoch = wanted, None
        self._missing = set(proxies)
        self._at = asyncio.get_running_loop().create_future()

    async def seen(self) -> float:
        """When the last proxy had acknowledged it, on the performance counter."""
        assert self._at is not None
        async with asyncio.timeout(60):
            return await self._at

    def stepped(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        if self._wanted is None or self._at is None:
            return
        if isinstance(event, Acked) and self._epoch is not None and event.epoch >= self._epoch:
            self._missing.discard(event.proxy.uid)
            if not self._missing:
                self._wanted = None
                self._at.set_result(time.perf_counter())
        for command in commands:
            if isinstance(command, Publish) and self._epoch is None and self._wanted(command.table):
                self._epoch = command.table.epoch


class Edits:
    """Edits one fleet again and again."""

    def __init__(self, side: OperatorSide, acks: LastAck, *, proxies: Sequence[str]) -> None:
        self.side = side
        self.times: dict[str, list[float]] = {}
        self._acks = acks
        self._proxies = proxies

    async def one(self, engine: str) -> None:
        """One engine is paused, and resumed."""
        for control, what, overrides in (
            (Control.PAUSED, "close one", {engine: Control.PAUSED}),
            (Control.ACTIVE, "open one", {}),
        ):
            opens = control is Control.ACTIVE
            self._acks.expect(
                lambda table, opens=opens: all(  # type: ignore[misc]
                    row.gate.open is opens for row in table.engines if row.id == engine
                ),
                proxies=self._proxies,
            )
            began = time.perf_counter()
            self.side.edit(overrides=overrides)
            self._note(what, await self._acks.seen() - began)
            await self._settled(control, of=(engine,))

    async def all(self) -> None:
        """The whole pool is paused, and resumed."""
        for control, what in ((Control.PAUSED, "close all"), (Control.ACTIVE, "open all")):
            opens = control is Control.ACTIVE
            self._acks.expect(
                lambda table, opens=opens: all(  # type: ignore[misc]
                    row.gate.open is opens for row in table.engines
                ),
                proxies=self._proxies,
            )
            began = time.perf_counter()
            self.side.edit(state=control)
            self._note(what, await self._acks.seen() - began)
            await self._settled(control)
            if not opens:
                self._note("all paused", time.perf_counter() - began)

    async def _settled(self, control: Control, *, of: Sequence[str] | None = None) -> None:
        await self.side.until(
            lambda: self.side.at_rest(control, of=of), f"becoming {control.value}"
        )

    def _note(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds)


async def measure(
    *, proxies: int, engines: int, edits: int, pool_edits: int, directory: Path
) -> dict[str, Any]:
    acks = LastAck()
    async with operator_side(directory, IdleEngines(), observer=acks) as side:
        with proxy_processes(proxies, side.endpoint) as uids:
            side.require(uids)
            side.edit(engines=specs(engines))
            await side.until(
                lambda: len(side.shell.state.proxies) == proxies and side.at_rest(Control.ACTIVE),
                "the proxies' joining",
            )
            run = Edits(side, acks, proxies=uids)
            names = list(side.shell.state.engines)
            await run.one(names[0])
            run.times.clear()  # the first of everything is no sample
            for turn in range(edits):
                await run.one(names[turn * 7 % engines])
            for _ in range(pool_edits):
                await run.all()
    figures = {what: spread(times, unit=MILLI, digits=2) for what, times in run.times.items()}
    return {"proxies": proxies, "engines": engines, "ms": figures}


def print_result(result: dict[str, Any]) -> None:
    where = f"{result['proxies']} proxies, {result['engines']} engines"
    for what, figure in result["ms"].items():
        print(
            f"{where:26} {what:11} p50 {figure['p50']:>9.2f} ms   p99 {figure['p99']:>9.2f} ms"
            f"   max {figure['max']:>9.2f} ms   of {figure['samples']}",
            flush=True,
        )
        where = ""


def main() -> int:
    args = arguments(__doc__).parse_args()
    sizes = [(p, e) for p in PROXIES for e in ENGINES]
    edits, pool_edits = EDITS, POOL_EDITS
    if args.quick:
        sizes, edits, pool_edits = [(1, 8), GOAL_AT], 5, 1
    results = []
    for proxies, engines in sizes:
        with tempfile.TemporaryDirectory() as folder:
            result = uvloop.run(
                measure(
                    proxies=proxies,
                    engines=engines,
                    edits=edits,
                    pool_edits=pool_edits,
                    directory=Path(folder),
                )
            )
        print_result(result)
        results.append(result)
    at_goal = next(one for one in results if (one["proxies"], one["engines"]) == GOAL_AT)
    p99 = at_goal["ms"]["close one"]["p99"]
    what = f"p99 of close one below {GOAL:g} ms with {GOAL_AT[0]} proxies and {GOAL_AT[1]} engines"
    return conclude(
        "control",
        args,
        folders=FOLDERS,
        goal={"what": what, "proxies": GOAL_AT[0], "engines": GOAL_AT[1], "below_ms": GOAL},
        missed=[f"{what}: {p99:g} ms"] if p99 >= GOAL else [],
        results=results,
        processes="each proxy in a process of its own, the operator in another, on these cores",
    )


if __name__ == "__main__":
    raise SystemExit(main())
