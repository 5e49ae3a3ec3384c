"""What one change of the fleet table costs the operator and each proxy, by the size of the fleet.

    python -m tests.bench.bench_table [--quick] [--json FILE]

Measured in this process, without sockets, for tables that follow each other and differ by one gate:

* *encode*: all that the operator does with a table once, however many proxies there are. The bytes,
  the check that a proxy reads them as the same table, and the digest.
* *frame*: what it does for each proxy.
* *decode*: from the bytes of a frame to a checked table, in a proxy.
* *apply*: ``Fleet.apply``, and the masks for two version policies (``any`` and ``latest-only``), so
  that the next request finds them ready. The routing loop stands still meanwhile.
* *first apply*: the same for the first table of a process, in which every engine is new.

The goal is an *apply* below 2 ms (p99) with 512 engines.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from steersman.clock import MonotonicClock
from steersman.control import Snapshot, decode_from_operator
from steersman.engine import Role
from steersman.policy import parse_policy
from steersman.settings import PoolSettings
from steersman.table import Table
from steersman_operator.control.outgoing import Outgoing
from steersman_proxy.routing.fleet import Fleet
from tests.bench.support import arguments, conclude, spread
from tests.bench.support_tables import POOL, next_table, table_of

SIZES = (8, 64, 512, 4096)
GOAL_SIZE = 512
GOAL = 2.0
"""Milliseconds."""
SECONDS = 6.0
"""Spent on each size."""
FOLDERS = (
    "dataplane/steersman",
    "dataplane/steersman_proxy/routing",
    "operator/steersman_operator/control",
)
POLICIES = (parse_policy("any"), parse_policy("latest-only"))
MILLI = 1e-3


class Times:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.of.setdefault(what, []).append(time.perf_counter() - began)


def new_fleet() -> Fleet:
    return Fleet(
        clock=MonotonicClock(),
        defaults=PoolSettings(),
        pool_settings={},
        rl_enabled=True,
        random=random.Random(1),
    )


def encoded(table: Table) -> Outgoing:
    outgoing = Outgoing(table, peers=(), removed_ok=False, made_at=0.0)
    outgoing.encode()
    return outgoing


def decoded(frame: bytes) -> Table:
    message = decode_from_operator(frame)
    assert isinstance(message, Snapshot)
    return message.table


def applied(fleet: Fleet, table: Table) -> None:
    fleet.apply(table)
    pool = fleet.pool(POOL)
    assert pool is not None
    for policy in POLICIES:
        assert pool.eligible(Role.PLAIN, policy).engines


def measure(engines: int, *, seconds: float) -> dict[str, Any]:
    """Tables one after the other, through everything that a table goes through."""
    times, sizes = Times(), set()
    table, fleet = table_of(engines), new_fleet()
    applied(fleet, table)
    until, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < until or turn < 5:
        # One closes, opens again, then the next one.
        table, turn = next_table(table, engine=turn // 2 % engines), turn + 1
        with times.measured("encode"):
            outgoing = encoded(table)
        with times.measured("frame"):
            frame = outgoing.frame(1, now=0.0)
        with times.measured("decode"):
            read = decoded(frame)
        with times.measured("apply"):
            applied(fleet, read)
        if turn % 10 == 1:
            with times.measured("first apply"):
                applied(new_fleet(), read)
        sizes.add(len(frame))
    figures = {what: spread(samples, unit=MILLI, digits=4) for what, samples in times.of.items()}
    return {"engines": engines, "bytes": max(sizes), "ms": figures}


def print_table(results: list[dict[str, Any]]) -> None:
    figure: Callable[[dict[str, float]], str] = lambda f: f"{f['p50']:.3f} / {f['p99']:.3f}"  # noqa: E731
    print(f"{'p50 / p99 in ms':16}" + "".join(f"{r['engines']:>13,} engines" for r in results))
    for what in results[0]["ms"]:
        print(f"{what:16}" + "".join(f"{figure(r['ms'][what]):>21}" for r in results))
    print(f"{'bytes':16}" + "".join(f"{r['bytes']:>21,}" for r in results))


def main() -> int:
    args = arguments(__doc__).parse_args()
    results = [measure(engines, seconds=0.3 if args.quick else SECONDS) for engines in SIZES]
    print_table(results)
    p99 = next(r for r in results if r["engines"] == GOAL_SIZE)["ms"]["apply"]["p99"]
    what = f"p99 of apply below {GOAL:g} ms with {GOAL_SIZE} engines"
    return conclude(
        "table",
        args,
        folders=FOLDERS,
        goal={"what": what, "engines": GOAL_SIZE, "below_ms": GOAL},
        missed=[f"{what}: {p99:g} ms"] if p99 >= GOAL else [],
        results=results,
    )


if __name__ == "__main__":
    raise SystemExit(main())
