"""What a rolling refit takes beyond the engines' own time: of each engine, and of a pool's capacity.

    python -m tests.bench.bench_refit [--quick] [--json FILE] [--folder DIR]

The operator (core, shell, records, control server, dialects with their HTTP clients) is this process;
the proxies are whole ones, a process each, connected over a local socket; the simulated engines are
one further process, and read weights from disk in a second. There is a pool of 8 of each kind; one after
the other is refitted several times in a row for each ``maxUnavailable``, without traffic and with a
little (clients in the engines' process).

* *overhead*: of one engine, from the table that closes its gate to the last proxy's acknowledgement of
  the table that opens it again, less the engine's own time: that of the call in which it loads, and
  that in which it finishes the requests it had when all proxies had let go. The engines' journals
  tell both. *published* is the same until that table was handed to the control server.
* *where*: what the overhead was spent on. *acks*: until every proxy has acknowledged that the gate is
  closed. *drain*: until proxies and engine are known to have nothing left. *intents*: writing down what
  is about to be done, before each call. *pause*, *load*, *resume*: the calls (of the load what is not
  the engine's own time of it). *looks*: reading back what the engine is, after each call. *between*:
  from the end of a look until the next intent. *opening*: from the last look to the last
  acknowledgement.
* *closed*: the engine seconds for which gates were closed in a rollout, and *length*: from the edit to
  the end of the last refit; both as a multiple of the plan's optimum. That is one load's own time
  for each engine, and for each turn of ``maxUnavailable`` engines. Where there is traffic, the requests
  that engines finish are in the time and not in the optimum.

All processes share the cores of the machine, and its disk: three times in a refit the operator waits
for a flush before it calls the engine. ``--folder`` on a file system in memory shows the rest.

The goal is an overhead below 150 ms (p99) with 4 proxies.
"""

import asyncio
import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import uvloop

from steersman.engine import Control, Runtime
from steersman_operator.engines import Engines
from steersman_operator.fleet.events import SpecChanged
from steersman_operator.fleet.spec import EngineSpec, PoolSpec, SourceKind, Weights
from steersman_operator.shell.fleet import FleetShell
from tests.bench.support import arguments, conclude, spread
from tests.bench.support_operator import OperatorSide, operator_side
from tests.bench.support_refit import GENERATES, LOADS, RUNTIMES, Child, around
from tests.bench.support_timeline import PARTS, Refit, Timeline

PROXIES = 4
ENGINES = 8
LIMITS = ("1", "2", "50%")
ROLLOUTS = 3
"""In a row, for each limit."""
LOAD = 1.0
"""Seconds that an engine needs to read its weights."""
RATE = 20.0
"""Requests a second, where there is traffic."""
GOAL = 150.0
"""Milliseconds."""
FOLDERS = (
    "dataplane/steersman",
    "dataplane/steersman_proxy",
    "dataplane/steersman_sim",
    "operator/steersman_operator",
)
MILLI = 1e-3


class Rollout(msgspec.Struct):
    """One refit of the whole pool."""

    began: float
    refits: list[Refit]

    @property
    def length(self) -> float:
        """Seconds from the edit to the end."""
        return max(refit.ended for refit in self.refits) - self.began

    @property
    def closed(self) -> float:
        """Engine seconds without a gate."""
        return sum(refit.ended - refit.closed for refit in self.refits)

    @property
    def own(self) -> float:
        """The mean of the loads' own times."""
        return fmean(refit.own_load for refit in self.refits)


class Pools:
    """A pool of each kind of engine; each gets new weights again and again."""

    def __init__(
        self,
        shell: FleetShell,
        timeline: Timeline,
        specs: Mapping[Runtime, tuple[EngineSpec, ...]],
    ) -> None:
        self._shell = shell
        self._timeline = timeline
        self._versions = itertools.count(1)
        self.of = {
            runtime: PoolSpec(
                name=runtime.value,
                models=(runtime.value,),
                default=runtime is Runtime.SGLANG,  # its requests name no model
                engines=engines,
            )
            for runtime, engines in specs.items()
        }

    def edit(self, runtime: Runtime | None = None, **changes: Any) -> None:
        """Somebody has edited a pool, or all are new."""
        if runtime is not None:
            pool = self.of[runtime]
            generation = pool.generation + 1
            changed = msgspec.structs.replace(pool, generation=generation, **changes)
            self.of[runtime] = changed
        self._shell.feed(SpecChanged(now=self._shell.now, pools=tuple(self.of.values())))

    async def rollout(self, side: OperatorSide, runtime: Runtime, *, limit: str) -> Rollout:
        """A refit of all engines of a kind, until its end."""
        timeline, version = self._timeline, str(next(self._versions))
        target = Weights(version=version, source=SourceKind.DISK, path=f"/weights/{version}")
        began = self._shell.now
        self.edit(runtime, weights=target, max_unavailable=limit)
        names = [spec.id for spec in self.of[runtime].engines]

        def done() -> bool:
            engines = side.shell.state.engines
            return not timeline.running and all(engines[one].loaded == target.id for one in names)

        await side.until(done, f"the refit to {version}")
        refits = timeline.taken()
        if sorted(refit.engine for refit in refits) != sorted(names):
            raise SystemExit(f"{len(refits)} refits of {len(names)} engines")
        return Rollout(began=began, refits=refits)


def judge_by(journals: dict[str, list[Any]], refits: Sequence[Refit], *, runtime: Runtime) -> None:
    """Give each refit the engine's own time, as the engine has it."""
    for refit in refits:
        loads = [
            ended - arrived
            for path, arrived, ended in journals[refit.engine]
            if path == LOADS[runtime] and refit.closed < arrived < refit.ended
        ]
        if not loads:
            raise SystemExit(f"{refit.engine} was not told to load")
        requests = [
            ended
            for path, arrived, ended in journals[refit.engine]
            if path == GENERATES[runtime] and arrived < refit.drained and ended > refit.closed
        ]
        refit.take_own(load=sum(loads), busy_until=max(requests, default=0.0))


async def served(clients: Child) -> int:
    """End the traffic; how many answers there were."""
    await clients.tell("quiet")
    statuses = await clients.heard()
    if statuses.keys() - {"200"}:
        raise SystemExit(f"requests were lost: {statuses}")
    return sum(statuses.values())


async def measure(
    *,
    proxies: int,
    engines: int,
    limits: Sequence[str],
    rollouts: int,
    seconds: float,
    folder: Path | None,
) -> list[dict[str, Any]]:
    """Rollouts of a pool of each kind of engine, without traffic and with it, by each limit."""
    callers, timeline = Engines(), Timeline()
    uids = [f"proxy-{number}" for number in range(proxies)]
    results = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(callers.close)
        own = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        side = await stack.enter_async_context(operator_side(Path(own), callers, observer=timeline))
        world = await stack.enter_async_context(
            around(side.endpoint, proxies=uids, engines=engines, seconds=seconds)
        )
        pools = Pools(side.shell, timeline, world.specs)
        side.require(uids)
        pools.edit()
        await side.until(
            lambda: (
                len(side.shell.state.proxies) == proxies
                and side.shell.state.published
                and side.at_rest(Control.ACTIVE)
            ),
            "the engines' and proxies' joining",
        )
        for runtime in RUNTIMES:
            await pools.rollout(side, runtime, limit="50%")  # the first of everything is no sample
            for rate, limit in itertools.product((0.0, RATE), limits):
                if rate:
                    await world.engines.tell("traffic", runtime.value, rate, *world.proxies)
                    await asyncio.sleep(2 * seconds)
                done = [await pools.rollout(side, runtime, limit=limit) for _ in range(rollouts)]
                answers = await served(world.engines) if rate else 0
                await world.engines.tell("journal", runtime.value)
                names = [spec.id for spec in world.specs[runtime]]
                journals = dict(zip(names, await world.engines.heard(), strict=True))
                refits = [refit for rollout in done for refit in rollout.refits]
                judge_by(journals, refits, runtime=runtime)
                result = {
                    "engines": runtime.value,
                    "requests_per_second": rate,
                    "answers": answers,
                    "max_unavailable": limit,
                    **figures(done, at_once=pools.of[runtime].unavailable_limit()),
                }
                print_result(result)
                overheads_ms = [round(refit.overhead / MILLI, 1) for refit in refits]
                results.append({**result, "all_overheads_ms": overheads_ms})
    return results


def figures(rollouts: Sequence[Rollout], *, at_once: int) -> dict[str, Any]:
    """What is told of rollouts in which so many engines might be closed at once."""
    refits = [refit for rollout in rollouts for refit in rollout.refits]
    engines = len(rollouts[0].refits)
    turns = math.ceil(engines / at_once)
    return {
        "own_s": spread([refit.own_load for refit in refits], unit=1.0),
        "overhead_ms": spread([refit.overhead for refit in refits], unit=MILLI, digits=1),
        "published_ms": spread([refit.until_published for refit in refits], unit=MILLI, digits=1),
        "where_ms": {
            part: spread([refit.spent.get(part, 0.0) for refit in refits], unit=MILLI, digits=1)
            for part in PARTS
        },
        "length_s": round(median(rollout.length for rollout in rollouts), 3),
        "optimal_length_s": round(median(turns * rollout.own for rollout in rollouts), 3),
        "length": round(median(one.length / (turns * one.own) for one in rollouts), 3),
        "closed": round(median(one.closed / (engines * one.own) for one in rollouts), 3),
    }


def print_result(result: dict[str, Any]) -> None:
    rate = result["requests_per_second"]
    traffic = f"{rate:g} requests/s" if rate else "no traffic"
    overhead, where = result["overhead_ms"], result["where_ms"]
    parts = ", ".join(f"{part} {where[part]['p50']:g} ({where[part]['max']:g})" for part in PARTS)
    print(
        f"{result['engines']:6} {traffic:13} maxUnavailable {result['max_unavailable']:>3}:"
        f" overhead p50 {overhead['p50']:6.1f} ms   p99 {overhead['p99']:6.1f} ms"
        f"   max {overhead['max']:6.1f} ms   of {overhead['samples']}\n"
        f"{'':8}length {result['length_s']:.2f} s, {result['length']:.2f} of the optimum;"
        f" closed {result['closed']:.2f} of the optimum\n"
        f"{'':8}p50 (max) of {parts} ms",
        flush=True,
    )


def overheads(results: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All limits together, by the kind of engine and the traffic."""
    cells: dict[tuple[str, float], list[float]] = {}
    for one in results:
        cell = cells.setdefault((one["engines"], one["requests_per_second"]), [])
        cell.extend(one.pop("all_overheads_ms"))
    for (engines, rate), samples in cells.items():
        yield {
            "engines": engines,
            "requests_per_second": rate,
            "overhead_ms": spread(samples, unit=1.0, digits=1),
        }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--folder", metavar="DIR", type=Path, help="for the operator's records")
    args = parser.parse_args()
    size: dict[str, Any] = {
        "proxies": PROXIES,
        "engines": ENGINES,
        "limits": LIMITS,
        "rollouts": ROLLOUTS,
        "seconds": LOAD,
    }
    if args.quick:
        size = {"proxies": 2, "engines": 4, "rollouts": 1, "seconds": 0.1}
        size["limits"] = ("1", "50%")
    results = uvloop.run(measure(**size, folder=args.folder))
    together = list(overheads(results))
    print()
    for one in together:
        print(
            f"{one['engines']:6} {one['requests_per_second']:2g} requests/s, all limits: overhead"
            f" p50 {one['overhead_ms']['p50']:g} ms   p99 {one['overhead_ms']['p99']:g} ms"
            f"   max {one['overhead_ms']['max']:g} ms   of {one['overhead_ms']['samples']}"
        )
    what = f"p99 of the overhead of a refit below {GOAL:g} ms with {PROXIES} proxies"
    return conclude(
        "refit",
        args,
        folders=FOLDERS,
        goal={"what": what, "proxies": PROXIES, "below_ms": GOAL},
        missed=[
            f"{what}: {one['overhead_ms']['p99']:g} ms"
            f" ({one['engines']}, {one['requests_per_second']:g} requests/s)"
            for one in together
            if one["overhead_ms"]["p99"] >= GOAL
        ],
        results={"overheads": together, "rollouts": results},
        folder="the system's for temporary files" if args.folder is None else str(args.folder),
        processes="the operator in one, each proxy in another, all engines in a further one",
    )


if __name__ == "__main__":
    raise SystemExit(main())
