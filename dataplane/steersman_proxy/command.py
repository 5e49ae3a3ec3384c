"""``steersman proxy``: run one proxy process until SIGTERM."""

import argparse
import asyncio
import contextlib
import gc
import resource
import signal
import sys

import uvloop

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman.errors import DocumentError
from steersman_proxy import allocator
from steersman_proxy.app import ProxyApp
from steersman_proxy.config.load import load_config
from steersman_proxy.config.overrides import add_flags, overrides_of
from steersman_proxy.settings import ProxySettings


class ProxyCommand:
    """Run a proxy."""

    help = "run a proxy over the engines of a table file or of an operator"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--config", metavar="FILE", help="the proxy's configuration (YAML or TOML)"
        )
        add_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run until SIGTERM or SIGINT; a second signal ends the drain."""
        settings = settings_of(args)
        _take_all_files()
        return uvloop.run(_serve(settings))


def settings_of(args: argparse.Namespace) -> ProxySettings:
    """The settings of the file under those of the command line.

    :raises DocumentError: if they cannot be used, or if no table is named.
    """
    loaded = load_config(args.config, overrides=overrides_of(args))
    for warning in loaded.warnings:
        print(f"steersman proxy: {warning}", file=sys.stderr)
    if loaded.settings.table_file is None and loaded.settings.control is None:
        problem = (
            "no fleet table is named; add --table FILE or --control ADDRESS, or table.file or "
            "control.addresses to the configuration"
        )
        raise DocumentError(args.config or "command line", [problem])
    return loaded.settings


def _take_all_files() -> None:
    """Raise the limit of open files to what the system grants.

    Each request takes two, and trainers send thousands; the usual soft limit is 1,024. It is that
    low for programs that use select(), which this one does not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems say "infinite" and do not mean it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settle_memory() -> None:
    """Let the collector of garbage leave alone what has been made so far, and come more seldom.

    A request leaves nothing for it; looking for that costs up to a twentieth of all.
    """
    allocator.tune()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _serve(settings: ProxySettings) -> int:
    app = ProxyApp(settings)
    loop = asyncio.get_running_loop()
    leave = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if leave.is_set() else leave).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await app.start()
    except OSError as error:
        await app.stop()
        print(f"steersman proxy: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        _settle_memory()
        print(f"listening on {app.url}, metrics on {app.metrics_url}", flush=True)
        await leave.wait()
        drain = asyncio.ensure_future(app.drain())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, hurried):
            task.cancel()
        await asyncio.gather(drain, hurried, return_exceptions=True)
    finally:
        await app.stop()
    return EXIT_OK


command = ProxyCommand()
