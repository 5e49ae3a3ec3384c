"""``steersman up``: a whole fleet on one machine, from a directory of manifests."""

import argparse
import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from steersman.cli import EXIT_OK
from steersman.clock import MonotonicClock
from steersman.errors import SteersmanError
from steersman_operator.commands.up_live import LiveView
from steersman_operator.commands.up_plain import PlainView, View, metrics_of
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.locks import FileLock, FleetRunning
from steersman_operator.standalone.ports import SharedPort, check_free, free_ports
from steersman_operator.standalone.settings import UpSettings
from steersman_operator.standalone.supervisor import Supervisor
from steersman_operator.standalone.watching import watch_fleet

MAX_PROXIES = 64


class UpCommand:
    """Run a fleet until Ctrl-C."""

    help = "run an operator and proxies on this machine, from a directory of manifests"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        default = UpSettings()
        add = parser.add_argument
        add(
            "-f",
            "--dir",
            dest="directory",
            type=Path,
            required=True,
            metavar="DIR",
            help="directory of RolloutEngine and WeightVersion manifests; it is watched",
        )
        add(
            "--proxies",
            type=_proxies,
            default=default.proxies,
            metavar="N",
            help="proxy processes, all on one port (default %(default)s)",
        )
        add("--host", default=default.host, help="address for clients (default %(default)s)")
        add(
            "--port",
            type=_port,
            default=default.port,
            help="port for clients, 0 for any (default %(default)s)",
        )
        add(
            "--metrics-host",
            default=default.metrics_host,
            metavar="HOST",
            help="address of all metrics ports (default %(default)s)",
        )
        add(
            "--metrics-port",
            type=_port,
            default=default.metrics_ports[0],
            metavar="PORT",
            help="metrics port of the first proxy, the next has the next; 0 for any "
            "(default %(default)s)",
        )
        add(
            "--operator-metrics-port",
            type=_port,
            default=default.operator_metrics_port,
            metavar="PORT",
            help="metrics port of the operator, 0 for any (default %(default)s)",
        )
        add(
            "--proxy-config",
            metavar="FILE",
            help="configuration of the proxies, such as keys of clients",
        )
        add(
            "--record",
            metavar="FILE",
            help="write down all that happens to the operator, for `steersman replay`",
        )
        add(
            "--plain",
            action="store_true",
            help="lines instead of a live table; always so when the output is no terminal",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run; 0 after Ctrl-C or SIGTERM."""
        layout = Layout(args.directory)
        layout.make()
        _check_file(args.proxy_config, option="--proxy-config")
        with _only_one(layout), _ports(args) as (shared, metrics_ports, operator_port):
            settings = UpSettings(
                proxies=args.proxies,
                host=args.host,
                port=shared.port,
                metrics_host=args.metrics_host,
                metrics_ports=metrics_ports,
                operator_metrics_port=operator_port,
                proxy_config=None if args.proxy_config is None else _absolute(args.proxy_config),
                record=None if args.record is None else _absolute(args.record),
            )
            console = Console()
            plain = args.plain or not console.is_terminal
            view: View = PlainView() if plain else LiveView(console)
            return asyncio.run(_run(layout, settings, view=view))


@contextlib.contextmanager
def _only_one(layout: Layout) -> Iterator[None]:
    lock = FileLock(layout.lock, directory=layout.directory)
    if not _taken(lock):
        raise FleetRunning(
            f"a fleet runs in {layout.directory} already (process {lock.holder()}). "
            f"{FleetRunning.remedy}"
        )
    try:
        yield
    finally:
        lock.release()


def _taken(lock: FileLock) -> bool:
    # A command that looks whether a fleet runs here holds the lock for a moment.
    for _ in range(5):
        if lock.take():
            return True
        time.sleep(0.05)
    return lock.take()


@contextlib.contextmanager
def _ports(args: argparse.Namespace) -> Iterator[tuple[SharedPort, tuple[int, ...], int]]:
    with contextlib.closing(SharedPort(args.host, args.port, option="--port")) as shared:
        count, first = args.proxies, args.metrics_port
        if first:
            metrics = tuple(range(first, first + count))
        else:
            metrics = tuple(free_ports(args.metrics_host, count))
        operator = args.operator_metrics_port or free_ports(args.metrics_host, 1)[0]
        check_free(args.metrics_host, metrics, option="--metrics-port")
        check_free(args.metrics_host, [operator], option="--operator-metrics-port")
        yield shared, metrics, operator


async def _run(layout: Layout, settings: UpSettings, *, view: View) -> int:
    supervisor = Supervisor(layout, settings, clock=MonotonicClock())
    leave, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if leave.is_set() else leave).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    log = logging.getLogger("steersman.up")
    with view, _told(log, view):
        await supervisor.begin()
        supervisor.start()
        view.say(metrics_of(settings))
        watching = asyncio.create_task(watch_fleet(layout, settings, show=view.show))
        try:
            leaving = asyncio.create_task(leave.wait())
            await asyncio.wait({leaving, watching}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if watching.done():
                watching.result()
        finally:
            view.say("ending: requests in flight are finished first; Ctrl-C again cuts them")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await supervisor.close(hurry=hurry)
            view.say("the engines are left as they are")
    return EXIT_OK


@contextlib.contextmanager
def _told(log: logging.Logger, view: View) -> Iterator[None]:
    """What the supervisor logs is said by the view, so that neither draws over the other."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            view.say(record.getMessage())

    handler = Handler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)


class OptionUnusable(SteersmanError):
    """An option names something that cannot be used."""

    code = "option_unusable"
    remedy = "Correct the option that the message names."


def _check_file(path: str | None, *, option: str) -> None:
    if path is not None and not Path(path).is_file():
        raise OptionUnusable(f"{option}: there is no file {path}")


def _absolute(path: str) -> str:
    # The processes are told whole paths: they do not share a working directory for ever.
    return str(Path(path).resolve())


def _port(text: str) -> int:
    return _number(text, 0, 65535)


def _proxies(text: str) -> int:
    return _number(text, 1, MAX_PROXIES)


def _number(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"must be {low} to {high}, found {text[:20]!a}")
    return int(text)


command = UpCommand()
