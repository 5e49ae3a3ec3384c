"""What the operator costs while nothing happens: 512 engines, 16 proxies, no edit and no request.

    python -m tests.bench.bench_operator [--quick] [--json FILE] [--profile FILE]

The operator (core, shell, records, control server, the dialects with their HTTP clients) is this
process; the engines are another one that answers the routes that a look reads like an idle SGLang or
vLLM engine, and the proxies are one process each. Measured is the CPU time of this process, user and
system, as a percentage of one core, from when everything has been at rest for a while.

A third run, with *engines in the mind* that answer at once and without HTTP, shows what is left
without the looks' requests: steps of the core, heartbeats, timers. ``per_second`` says how often
each event and command of the core happened.

The goal is below 10 % of a core with either kind of engine.
"""

import asyncio
import cProfile
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from steersman.engine import Control, Runtime
from steersman_operator.engines import Engines
from steersman_operator.fleet.commands import Command
from steersman_operator.fleet.events import Event
from steersman_operator.fleet.state import State
from steersman_operator.shell.observer import ShellObserver
from tests.bench.support import arguments, conclude
from tests.bench.support_engines import engine_process
from tests.bench.support_operator import IdleEngines, operator_side
from tests.bench.support_operator import specs as in_the_mind
from tests.bench.support_proxy import proxy_processes

ENGINES = 512
PROXIES = 16
GOAL = 10.0
"""Percent of a core."""
SETTLE = 15.0
"""Seconds of rest before the measurement."""
SECONDS = 30.0
FOLDERS = (
    "dataplane/steersman",
    "operator/steersman_operator/control",
    "operator/steersman_operator/engines",
    "operator/steersman_operator/fleet",
    "operator/steersman_operator/shell",
)


class Counts(ShellObserver):
    """Events and commands by kind."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def stepped(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        self.of[type(event).__name__] += 1
        self.of.update(type(command).__name__ for command in commands)


def used() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def at_rest(
    callers: Engines | IdleEngines,
    specs: Sequence[Any],
    *,
    proxies: int,
    settle: float,
    seconds: float,
    profile: cProfile.Profile | None = None,
) -> dict[str, Any]:
    """One operator until it is at rest, and then for ``seconds``."""
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        async with operator_side(Path(folder), callers, observer=counts) as side:
            with proxy_processes(proxies, side.endpoint) as uids:
                side.require(uids)
                side.edit(engines=specs)
                await side.until(
                    lambda: (
                        len(side.shell.state.proxies) == proxies
                        and side.shell.state.published
                        and side.at_rest(Control.ACTIVE)
                    ),
                    "the engines' and proxies' joining",
                )
                await asyncio.sleep(settle)
                counts.of.clear()
                if profile is not None:
                    profile.enable()
                began, cpu = time.perf_counter(), used()
                await asyncio.sleep(seconds)
                cpu, took, seen = used() - cpu, time.perf_counter() - began, counts.of.copy()
                if profile is not None:
                    profile.disable()
                assert all(
                    one.reachable and one.gate.open for one in side.shell.state.engines.values()
                )
    return {
        "percent_of_a_core": round(100 * cpu / took, 2),
        "per_second": {name: round(n / took, 2) for name, n in sorted(seen.items())},
    }


async def with_engines(runtime: Runtime, count: int, **more: Any) -> dict[str, Any]:
    """With the real clients and dialects, against engines in another process."""
    with engine_process(runtime, count) as specs:
        callers = Engines()
        try:
            return await at_rest(callers, specs, **more)
        finally:
            await callers.close()


def measure(*, engines: int, profile: cProfile.Profile | None = None, **more: Any) -> list[Any]:
    results = []
    for runtime in (Runtime.SGLANG, Runtime.VLLM):
        figures = uvloop.run(with_engines(runtime, engines, profile=profile, **more))
        results.append({"what": runtime.value, "engines": engines, **figures})
        print_result(results[-1])
    figures = uvloop.run(at_rest(IdleEngines(), in_the_mind(engines), **more))
    results.append({"what": "engines in the mind", "engines": engines, **figures})
    print_result(results[-1])
    return results


def print_result(result: dict[str, Any]) -> None:
    rates = ", ".join(f"{name} {rate:g}" for name, rate in result["per_second"].items())
    print(f"{result['what']:20} {result['percent_of_a_core']:6.2f} % of a core; a second: {rates}")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--profile", metavar="FILE", type=Path, help="write a profile (slower)")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    if args.quick:
        results = measure(engines=32, proxies=1, settle=0.2, seconds=2.5, profile=profile)
    else:
        results = measure(
            engines=ENGINES, proxies=PROXIES, settle=SETTLE, seconds=SECONDS, profile=profile
        )
    if profile is not None:
        profile.dump_stats(args.profile)
    what = f"below {GOAL:g} % of a core at rest with {ENGINES} engines and {PROXIES} proxies"
    return conclude(
        "operator",
        args,
        folders=FOLDERS,
        goal={"what": what, "below_percent": GOAL},
        missed=[
            f"{what}: {one['percent_of_a_core']:g} % ({one['what']})"
            for one in results
            if one["percent_of_a_core"] >= GOAL
        ],
        results=results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
