"""What one routing decision costs, and that it does not grow with the fleet.

    python -m tests.bench.bench_decisions [--quick] [--json FILE]

Measured in this process, without sockets: *choose* is eligibility for the request's version policy
plus the policy's choice, for a request whose policy came in a header; *request* is all of
``Fleet.select`` plus the release of its guard, so the counting too. Each figure is the best of
several rounds: other work on a shared machine only ever adds.

The goal is 1 µs for *choose* with ``round_robin`` and ``power_of_two``, at 8 and at 1,000 engines,
under every version policy. A missed goal ends with exit code 1, except with ``--quick``, which
measures too briefly to tell.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from steersman.clock import MonotonicClock
from steersman.engine import EngineRow, Role, Trust
from steersman.policy import VersionPolicy, parse_policy
from steersman.settings import PoolSettings, RoutingPolicy
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import RouteRequest, Selected
from steersman_proxy.routing.view import PoolView
from tests.bench.support import arguments, conclude

POOL = "bench"
GOAL = 1000.0
"""Nanoseconds."""
SIZES = (8, 1000)
VERSION_POLICIES = ("any", "latest-only", "min-version:7", "max-staleness:10", "max-staleness:0")
WITH_GOAL = (RoutingPolicy.ROUND_ROBIN, RoutingPolicy.POWER_OF_TWO)
FOLDERS = ("dataplane/steersman_proxy/routing", "dataplane/steersman_proxy/load")
"""The code that is measured."""


def fleet_of(engines: int, policy: RoutingPolicy) -> tuple[Fleet, Table]:
    """Engines at the newest version, save every eighth, which is one behind."""
    table = Table(
        epoch=Epoch(1, 1),
        pools=(PoolRow(name=POOL, models=("m",), fleet_max="9"),),
        engines=tuple(
            EngineRow(
                id=f"engine-{n}",
                url=f"http://10.0.{n // 250}.{n % 250}:30000",
                pool=POOL,
                version="8" if n % 8 == 7 else "9",
                trust=Trust.VERIFIED,
            )
            for n in range(engines)
        ),
    )
    fleet = Fleet(
        clock=MonotonicClock(),
        defaults=PoolSettings(policy=policy),
        pool_settings={},
        rl_enabled=True,
        random=random.Random(1),
    )
    fleet.apply(table)
    return fleet, table


def pool_of(fleet: Fleet) -> PoolView:
    pool = fleet.pool(POOL)
    assert pool is not None
    return pool


class Stopwatch:
    """Times a loop as a whole; the cost of an empty one is taken off."""

    def __init__(self, *, quick: bool) -> None:
        self.rounds = 3 if quick else 60
        self.budget = 0.002 if quick else 0.008
        """Seconds that one round should take: many short ones, so that some are undisturbed."""

    def nanoseconds(self, loop: Callable[[int], None]) -> float:
        """Of one turn of ``loop(turns)``: the best of all rounds."""
        turns = 1
        while (taken := self._once(loop, turns)) < self.budget / 4:
            turns *= 4
        turns = max(1, int(turns * self.budget / taken))
        best = min(self._once(loop, turns) for _ in range(self.rounds))
        empty = min(self._once(_nothing, turns) for _ in range(self.rounds))
        return max(0.0, best - empty) / turns * 1e9

    @staticmethod
    def _once(loop: Callable[[int], None], turns: int) -> float:
        start = time.perf_counter()
        loop(turns)
        return time.perf_counter() - start


def _nothing(turns: int) -> None:
    for _ in range(turns):
        pass


def choose_loop(pool: PoolView, policy: VersionPolicy) -> Callable[[int], None]:
    def loop(turns: int) -> None:
        role = Role.PLAIN
        for _ in range(turns):
            pool.choose(pool.eligible(role, policy))

    return loop


def request_loop(fleet: Fleet, request: RouteRequest) -> Callable[[int], None]:
    def loop(turns: int) -> None:
        for _ in range(turns):
            selected = fleet.select(request)
            assert isinstance(selected, Selected)
            selected.guard.release()

    return loop


def naive_loop(fleet: Fleet) -> Callable[[int], None]:
    """For comparison: filter all engines for every request."""
    engines = tuple(fleet.engines())

    def loop(turns: int) -> None:
        for _ in range(turns):
            able = [
                engine
                for engine in engines
                if engine.healthy and engine.row.gate.open and engine.version == "9"
            ]
            able[turns % len(able)]

    return loop


def measure(watch: Stopwatch) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []

    def note(what: str, loop: Callable[[int], None], **facts: Any) -> None:
        results.append({"what": what, **facts, "ns": round(watch.nanoseconds(loop), 1)})

    for policy in (*WITH_GOAL, RoutingPolicy.RANDOM, RoutingPolicy.LOAD_ONLY):
        for engines in SIZES:
            for text in VERSION_POLICIES:
                fleet, _ = fleet_of(engines, policy)
                version_policy = parse_policy(text)
                facts = {"policy": policy.value, "engines": engines, "version_policy": text}
                note("choose", choose_loop(pool_of(fleet), version_policy), **facts)
                request = RouteRequest(pool=POOL, policy=version_policy)
                note("request", request_loop(fleet, request), **facts)
    for engines in SIZES:
        fleet, table = fleet_of(engines, RoutingPolicy.POWER_OF_TWO)
        pool, known = pool_of(fleet), RouteRequest(pool=POOL, affinity="a known key")
        note("request with a known routing key", request_loop(fleet, known), engines=engines)
        note("first request of a routing key", _cold_keys(fleet), engines=engines)
        note("naive filter", naive_loop(fleet), engines=engines)
        note("eligibility after a change", _rebuild(pool), engines=engines)
        note("new table", _apply(fleet, table), engines=engines)
    return results


def _cold_keys(fleet: Fleet) -> Callable[[int], None]:
    ranking = pool_of(fleet).rendezvous(Role.PLAIN)
    counter = iter(range(10**12))

    def loop(turns: int) -> None:
        for _ in range(turns):
            ranking.first(f"key {next(counter)}")

    return loop


def _rebuild(pool: PoolView) -> Callable[[int], None]:
    policy = parse_policy("latest-only")

    def loop(turns: int) -> None:
        for _ in range(turns):
            pool.invalidate()
            pool.eligible(Role.PLAIN, policy)

    return loop


def _apply(fleet: Fleet, table: Table) -> Callable[[int], None]:
    def loop(turns: int) -> None:
        for _ in range(turns):
            fleet.apply(table)

    return loop


def missed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results that should be below the goal and are not."""
    names = {policy.value for policy in WITH_GOAL}
    return [
        result
        for result in results
        if result["what"] == "choose" and result["policy"] in names and result["ns"] >= GOAL
    ]


def print_table(results: list[dict[str, Any]]) -> None:
    print(f"{'':34} {'version policy':17} " + " ".join(f"{f'{n:,} engines':>14}" for n in SIZES))
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        name = " ".join(filter(None, (result.get("policy"), result["what"])))
        rows.setdefault((name, result.get("version_policy", "")), {})[result["engines"]] = result[
            "ns"
        ]
    for (name, text), figures in rows.items():
        print(f"{name:34} {text:17} " + " ".join(f"{figures[n]:>11,.0f} ns" for n in SIZES))


def main() -> int:
    args = arguments(__doc__).parse_args()
    results = measure(Stopwatch(quick=args.quick))
    print_table(results)
    return conclude(
        "decisions",
        args,
        folders=FOLDERS,
        goal={
            "what": f"choose below {GOAL:.0f} ns",
            "policies": [policy.value for policy in WITH_GOAL],
            "below_ns": GOAL,
        },
        missed=[f"{GOAL:.0f} ns: {failure}" for failure in missed(results)],
        results=results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
