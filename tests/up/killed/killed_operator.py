"""Operators of a standalone fleet that kill themselves at a point of an operation, one after another.

    python -m tests.up.killed.killed_operator

Reads lines ``DIRECTORY POINT ENGINE GOAL CALL DEADLINE``. For each a process is forked that runs the
operator of the directory and kills itself at the point; its number is printed, and when it has ended,
how. (Forked, because most of the time of a start is spent on imports.)

``DEADLINE`` is how many seconds a call may take by the intent on disk: for so long the next operator
waits for a call whose outcome was lost. The operator itself waits for as long as ever.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from steersman.clock import MonotonicClock
from steersman.engine import Control
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.fleet.facts import CallKind, Durable
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.operator import OperatorSettings, StandaloneOperator
from steersman_operator.standalone.processes import dying_with
from tests.up.killed.points import Point, Watch, install

TIMING = Timing(idle_gap=0.1, look_every=0.5, look_soon=0.05)


def main() -> None:
    for line in sys.stdin:
        parent = os.getpid()
        child = os.fork()
        if not child:
            dying_with(parent)()
            operate(*line.split())
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def operate(directory: str, point: str, engine: str, goal: str, call: str, deadline: str) -> None:
    """Be the operator; does not return."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s killed %(levelname)s %(name)s: %(message)s"
    )
    watch = Watch(Point[point], engine=engine, goal=Control(goal), call=CallKind(call))
    install(watch, FleetShell, FleetMetrics, die=_die)
    _shorten_deadlines(float(deadline))
    asyncio.run(_run(Path(directory)))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _shorten_deadlines(deadline: float) -> None:
    write = FileStore.write

    async def shortened(self: FileStore, record: Durable) -> None:
        if record.call is not None:
            record = msgspec.structs.replace(record, deadline=deadline)
        await write(self, record)

    FileStore.write = shortened  # type: ignore[method-assign]


async def _run(directory: Path) -> None:
    operator = StandaloneOperator(
        Layout(directory), OperatorSettings(metrics_port=0), clock=MonotonicClock(), timing=TIMING
    )
    await operator.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
