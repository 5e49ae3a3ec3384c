"""The process of the operator of a standalone fleet; started by ``steersman up``."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from steersman.clock import MonotonicClock
from steersman.errors import SteersmanError
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.operator import OperatorSettings, StandaloneOperator


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="steersman operator (standalone)")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--metrics-host", default="127.0.0.1")
    parser.add_argument("--metrics-port", type=int, default=28000)
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--record")
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    settings = OperatorSettings(
        metrics_host=args.metrics_host,
        metrics_port=args.metrics_port,
        endpoint=args.endpoint,
        record=args.record,
    )
    operator = StandaloneOperator(Layout(args.directory), settings, clock=MonotonicClock())
    try:
        return uvloop.run(_run(operator))
    except (SteersmanError, OSError) as error:
        logging.getLogger("steersman.operator").critical("%s", error)
        return 1


async def _run(operator: StandaloneOperator) -> int:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    await operator.start()
    try:
        assert operator.failed is not None, "it was started"
        operator.failed.add_done_callback(lambda _: leave.set())
        await leave.wait()
        if operator.failed.done():
            operator.failed.result()
    finally:
        await operator.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
