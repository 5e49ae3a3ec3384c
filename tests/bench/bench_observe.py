"""What it costs the operator to look at 512 engines once a second each.

    python -m tests.bench.bench_observe [--quick] [--json FILE] [--profile FILE]

The engines are one other process, which answers like idle or paused SGLang or vLLM engines, as long as
real ones. Measured is the CPU time of this process, user and system.

* ``looks``: the HTTP clients and the dialects alone, told to look at the engines one after another,
  evenly spread over the second.
* ``operator``: core, shell, records and control server with them, at the same rate, without a proxy.

The goal is below 20 % of a core, which is 390 µs for each look with everything that it brings about.
"""

import asyncio
import cProfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from steersman.engine import Control, Runtime
from steersman_operator.engines import Engines
from steersman_operator.fleet.commands import Look
from steersman_operator.fleet.spec import EngineSpec
from steersman_operator.fleet.state import Timing
from tests.bench.bench_operator import used
from tests.bench.support import arguments, conclude
from tests.bench.support_engines import engine_process
from tests.bench.support_operator import operator_side

ENGINES = 512
GOAL = 20.0
"""Percent of a core."""
SETTLE = 5.0
SECONDS = 30.0
FOLDERS = (
    "dataplane/steersman",
    "operator/steersman_operator/engines",
    "operator/steersman_operator/fleet",
    "operator/steersman_operator/shell",
)


@asynccontextmanager
async def looks(
    callers: Engines, specs: list[EngineSpec], *, paused: bool
) -> AsyncIterator[Callable[[], int]]:
    """Look at each engine once a second; yields how many looks there were."""
    count = 0

    async def look(spec: EngineSpec, phase: float) -> None:
        nonlocal count
        command = Look(engine=spec.id, url=spec.url, runtime=spec.runtime)
        loop = asyncio.get_running_loop()
        due = loop.time() + phase
        while True:
            await asyncio.sleep(due - loop.time())
            seen = await callers.look(command)
            assert (seen.reachable, seen.paused) == (True, paused), seen
            assert seen.boot_id is not None
            count += 1
            due += 1.0

    tasks = [
        asyncio.create_task(look(spec, number / len(specs))) for number, spec in enumerate(specs)
    ]
    try:
        yield lambda: count
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, AssertionError):
                raise error


@asynccontextmanager
async def operator(
    callers: Engines, specs: list[EngineSpec], *, paused: bool
) -> AsyncIterator[Callable[[], int]]:
    """The whole operator at that rate; yields how many looks there were."""
    count = 0
    look = callers.look

    async def counted(command: Look) -> Any:
        nonlocal count
        count += 1
        return await look(command)

    callers.look = counted  # type: ignore[method-assign]
    timing = Timing(look_every=1.0, looks_per_second=2.0 * len(specs))
    with tempfile.TemporaryDirectory() as folder:
        async with operator_side(Path(folder), callers, timing=timing) as side:
            state = Control.PAUSED if paused else Control.ACTIVE
            side.edit(engines=specs, state=state)
            await side.until(
                lambda: (
                    len(side.shell.state.engines) == len(specs)
                    and all(one.facts.control is state for one in side.shell.state.engines.values())
                ),
                "the first look at each engine",
            )
            yield lambda: count


async def measured(
    what: str, runtime: Runtime, *, paused: bool, engines: int, settle: float, seconds: float
) -> dict[str, Any]:
    with engine_process(runtime, engines, paused=paused) as specs:
        callers = Engines()
        try:
            running = (looks if what == "looks" else operator)(callers, specs, paused=paused)
            async with running as count:
                await asyncio.sleep(settle)
                before, began, cpu = count(), time.perf_counter(), used()
                await asyncio.sleep(seconds)
                cpu, took, made = used() - cpu, time.perf_counter() - began, count() - before
        finally:
            await callers.close()
    return {
        "what": what,
        "engines": f"{runtime.value}, {'paused' if paused else 'idle'}",
        "looks_per_second": round(made / took, 1),
        "us_per_look": round(1e6 * cpu / max(made, 1), 1),
        "percent_of_a_core": round(100 * cpu / took, 2),
    }


def measure(**more: Any) -> list[dict[str, Any]]:
    results = []
    for what in ("looks", "operator"):
        for runtime in (Runtime.SGLANG, Runtime.VLLM):
            for paused in (False, True):
                results.append(uvloop.run(measured(what, runtime, paused=paused, **more)))
                one = results[-1]
                print(
                    f"{one['what']:9} {one['engines']:14} {one['looks_per_second']:6.1f} looks/s "
                    f"{one['us_per_look']:7.1f} µs each {one['percent_of_a_core']:6.2f} % of a core"
                )
    return results


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--profile", metavar="FILE", type=Path, help="write a profile (slower)")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    if profile is not None:
        profile.enable()
    if args.quick:
        results = measure(engines=32, settle=0.2, seconds=1.5)
    else:
        results = measure(engines=ENGINES, settle=SETTLE, seconds=SECONDS)
    if profile is not None:
        profile.disable()
        profile.dump_stats(args.profile)
    what = f"below {GOAL:g} % of a core for a look at each of {ENGINES} engines once a second"
    return conclude(
        "observe",
        args,
        folders=FOLDERS,
        goal={"what": what, "below_percent": GOAL},
        missed=[
            f"{what}: {one['percent_of_a_core']:g} % ({one['what']}, {one['engines']})"
            for one in results
            if one["percent_of_a_core"] >= GOAL
        ],
        results=results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
