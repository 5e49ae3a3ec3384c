"""``steersman demo``: watch a fleet being refitted, paused and put to sleep under traffic."""

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from steersman.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from steersman_sim.demo.live import LiveView
from steersman_sim.demo.manifest import POOL
from steersman_sim.demo.options import PROXIES, DemoError, DemoOptions
from steersman_sim.demo.plain import PlainView
from steersman_sim.demo.run import Result, View, run_demo
from steersman_sim.demo.summary import all_kept, summary

SHORTEST = 12.0
"""Seconds that the steps need, each being a command that waits until it is done."""

_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class DemoCommand:
    """The subcommand."""

    help = "run simulated engines, a fleet over them and traffic, and judge what happens"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        default = DemoOptions()
        add = parser.add_argument
        add(
            "--duration",
            type=_number(at_least=SHORTEST),
            default=default.duration,
            metavar="SECONDS",
            help="length of the run; it is longer if the steps take longer (default %(default)g)",
        )
        add(
            "--rate",
            type=_number(at_least=1.0),
            default=default.rate,
            metavar="N",
            help="requests per second (default %(default)g)",
        )
        add(
            "--engines",
            type=_whole(at_least=2, at_most=16),
            default=default.engines,
            metavar="N",
            help="simulated engines (default %(default)s)",
        )
        add("--seed", type=int, default=default.seed, help="seed of traffic and engines")
        add(
            "--plain",
            action="store_true",
            help="lines instead of a live table; always so when the output is no terminal",
        )
        add(
            "--keep",
            action="store_true",
            help="leave the endpoint up after the run, until Ctrl-C",
        )
        add(
            "--plot",
            type=_plot_path,
            metavar="FILE",
            help="draw the run into FILE (.png, .svg or .pdf)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run; 0 if every promise was kept, 1 if not, 130 or 143 after a signal."""
        options = DemoOptions(
            duration=args.duration,
            rate=args.rate,
            engines=args.engines,
            seed=args.seed,
            plain=args.plain,
            keep=args.keep,
            plot=args.plot,
        )
        console = Console()
        if options.plot is not None and not options.plot.parent.is_dir():
            print(f"steersman demo: no directory {options.plot.parent}", file=sys.stderr)
            return EXIT_USAGE
        _say(f"starting {options.engines} engines, and `steersman up` with {PROXIES} proxies")
        try:
            return asyncio.run(_run(options, console=console))
        except DemoError as error:
            print(f"steersman demo: {error}", *_notes(error), sep="\n", file=sys.stderr)
            return EXIT_FAILED


async def _run(options: DemoOptions, *, console: Console) -> int:
    """Run until the end or a signal; returns the exit code."""
    view: AbstractContextManager[View]
    if options.plain or not console.is_terminal:
        view = PlainView(_say)
    else:
        view = LiveView(options, console=console)
    caught: list[int] = []
    good: list[bool] = []

    def finished(result: Result) -> bool:
        _finish(result, options=options)
        good.append(all_kept(result.verdict))
        return good[0]

    task = asyncio.create_task(run_demo(options, view=view, finished=finished))

    def stop(number: int) -> None:
        # Asked once: a second signal must not interrupt the ending of the processes.
        if not caught:
            task.cancel()
        caught.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if good:
        return EXIT_OK if good[0] else EXIT_FAILED
    return 128 + caught[0]


def _finish(result: Result, *, options: DemoOptions) -> None:
    """Print the summary, draw, and say how to go on."""
    _say("\n" + summary(result.records, verdict=result.verdict))
    if not all_kept(result.verdict):
        _say(f"The logs are in {result.directory}")
    if options.plot is not None:
        from steersman_sim.demo.plot import draw

        draw(result.records, verdict=result.verdict, path=options.plot)
        _say(f"\nThe run is drawn in {options.plot}")
    if options.keep:
        _say("\n" + invitation(result))


def invitation(result: Result) -> str:
    """What to do with an endpoint that was left up."""
    steersman = program(sys.argv[0])
    body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 16}})
    return f"""\
The endpoint stays up until Ctrl-C. Try:

  curl -i {result.url}/generate \\
    -H 'content-type: application/json' -H 'x-smg-version-policy: latest-only' \\
    -d '{body}'

While the engines are paused that request waits. See and change them:

  {steersman} get engines -f {result.directory}
  {steersman} pause {POOL} -f {result.directory}
  {steersman} resume {POOL} -f {result.directory}"""


def program(started_as: str) -> str:
    """What to type for this program: as it was started, unless the name alone means the same."""
    path = Path(started_as)
    if path.name != "steersman":
        return "steersman"
    found = shutil.which("steersman")
    return "steersman" if found and Path(found).samefile(path) else started_as


def _say(text: str) -> None:
    print(text, flush=True)


def _notes(error: DemoError) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _number(*, at_least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or value < at_least:
            raise argparse.ArgumentTypeError(f"must be at least {at_least:g}")
        return value

    return number


def _whole(*, at_least: int, at_most: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = int(text)
        if not at_least <= value <= at_most:
            raise argparse.ArgumentTypeError(f"must be {at_least} to {at_most}")
        return value

    return whole


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in _PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(_PLOT_SUFFIXES)}")
    return path


command = DemoCommand()
