"""``steersman sim-engine``: one sim engine as a process."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable

import uvloop

from steersman.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from steersman_sim.engine.config import EngineConfig, Runtime, TimeModel, Timings
from steersman_sim.engine.engine import SimEngine
from steersman_sim.engine.faults import PRESETS

EXIT_DIED = 3
"""The exit code of an engine that crashed."""

_STOP_GRACE_S = 2.0
"""Wall seconds that answers under way get after SIGTERM."""


def _announce(url: str) -> None:
    print(f"listening on {url}", flush=True)


def _speed(text: str) -> float:
    if text == "instant":
        return 0.0
    value = float(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be instant or a number of at least 0")
    return value


class SimEngineCommand:
    """The subcommand."""

    help = "run a believable SGLang or vLLM engine without a GPU"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        default = EngineConfig()
        add = parser.add_argument
        runtimes = [runtime.value for runtime in Runtime]
        add("--runtime", choices=runtimes, required=True, help="which engine to imitate")
        add("--host", default=default.host, help="address to bind (default %(default)s)")
        add("--port", type=int, default=0, help="0 lets the system choose (default)")
        add("--model", default=default.model, help="served model name (default %(default)s)")
        add(
            "--weight-version",
            default=default.weight_version,
            help="version label at launch (default %(default)s)",
        )
        add("--api-key", help="key of the data routes")
        add("--admin-api-key", help="key of the control routes (sglang)")

        simulated = parser.add_argument_group("simulation")
        add = simulated.add_argument
        add("--seed", type=int, default=default.seed, help="seed of all random choices")
        add(
            "--speed",
            type=_speed,
            default=default.speed,
            help="engine seconds per second, or instant (default %(default)s)",
        )
        add(
            "--deterministic",
            action="store_true",
            help="let answers depend on seed, prompt and weight version alone",
        )
        add(
            "--mean-output-tokens",
            type=float,
            default=default.mean_output_tokens,
            help="mean length at which an answer ends by itself (default %(default)s)",
        )
        for name, about in _DURATIONS.items():
            seconds = getattr(default.timings, f"{name}_s")
            option = f"--{name.replace('_', '-')}-seconds"
            add(option, type=float, default=seconds, help=f"{about} (default %(default)s)")
        for name, about in _TIME_MODEL.items():
            value = getattr(default.time, name)
            option = f"--time-{name.replace('_', '-')}"
            add(option, type=type(value), default=value, help=f"{about} (default %(default)s)")
        add("--journal-limit", type=int, default=default.journal_limit, help="entries to keep")
        add(
            "--fault",
            action="append",
            default=[],
            metavar="ROUTE=FAULT",
            help="arm a fault, as JSON or by name, for a path, for * or for refit, which means "
            f"whatever loads weights; names: {', '.join(PRESETS)} (may be repeated)",
        )

        engine = parser.add_argument_group("engine")
        add = engine.add_argument
        add(
            "--keep-alive-seconds",
            type=float,
            default=default.keep_alive_s,
            help="idle connections are closed after this (default %(default)s)",
        )
        add(
            "--startup-seconds",
            type=float,
            default=default.startup_s,
            help="engine seconds during which probes fail at first (sglang)",
        )
        add("--max-running", type=int, default=default.max_running, help="largest batch of a rank")
        add("--kv-tokens", type=int, default=default.kv_tokens, help="KV pool of a rank")
        add(
            "--block-size",
            "--page-size",
            type=int,
            default=default.block_size,
            help="tokens of a KV block (default %(default)s)",
        )
        add("--context-length", type=int, default=default.context_length, help="in tokens")
        add("--dp-size", type=int, default=1, help="data-parallel ranks")
        add("--tp-size", type=int, default=1, help="tensor-parallel ranks, for show")
        add(
            "--stream-incremental",
            action="store_true",
            help="chunks of /generate carry new tokens only (sglang)",
        )
        add(
            "--no-health-generation",
            action="store_true",
            help="/health is no request for a token (sglang)",
        )
        add(
            "--enable-weights-cpu-backup",
            action="store_true",
            help="weights survive a release of their memory (sglang)",
        )
        add(
            "--enable-scale-out",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="serve /inference/v1/generate (vllm)",
        )
        add(
            "--dev-mode",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="serve the control routes (vllm)",
        )
        add(
            "--weight-transfer",
            choices=["nccl", "ipc", "none"],
            default="nccl",
            help="weight transfer backend (vllm)",
        )
        add(
            "--enable-server-load-tracking",
            action="store_true",
            help="count requests in /load (vllm)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or SIGINT (0), or until the engine dies (3)."""
        try:
            engine = SimEngine(config_of(args))
            for fault in args.fault:
                engine.faults.arm_text(fault)
        except ValueError as error:
            print(f"steersman sim-engine: {error}", file=sys.stderr)
            return EXIT_USAGE
        try:
            return uvloop.run(serve(engine, announce=_announce))
        except OSError as error:
            print(f"steersman sim-engine: {error}", file=sys.stderr)
            return EXIT_FAILED


_DURATIONS = {
    "refit": "engine seconds of a weight update",
    "release": "engine seconds of a memory release or sleep",
    "resume": "engine seconds of a memory resume or wake-up",
    "abort_poll": "interval of the abort loop of a pause (sglang)",
    "health_poll": "interval of the health probe (sglang)",
    "health_timeout": "deadline of the health probe (sglang)",
}

_TIME_MODEL = {
    "step_s": "seconds of an iteration, fixed part",
    "context_s": "seconds of decode per context token",
    "sequence_s": "seconds of decode per sequence",
    "prefill_tokens_per_s": "rate of prefill",
    "chunk_tokens": "largest prefill of an iteration",
}


def config_of(args: argparse.Namespace) -> EngineConfig:
    """The configuration that the arguments describe.

    Raises:
        ValueError: a value is out of range.
    """
    return EngineConfig(
        runtime=Runtime(args.runtime),
        host=args.host,
        port=args.port,
        model=args.model,
        weight_version=args.weight_version,
        api_key=args.api_key,
        admin_api_key=args.admin_api_key,
        keep_alive_s=args.keep_alive_seconds,
        startup_s=args.startup_seconds,
        max_running=args.max_running,
        kv_tokens=args.kv_tokens,
        block_size=args.block_size,
        context_length=args.context_length,
        dp_size=args.dp_size,
        tp_size=args.tp_size,
        stream_incremental=args.stream_incremental,
        weights_cpu_backup=args.enable_weights_cpu_backup,
        health_generation=not args.no_health_generation,
        weight_transfer=None if args.weight_transfer == "none" else args.weight_transfer,
        dev_mode=args.dev_mode,
        scale_out=args.enable_scale_out,
        load_tracking=args.enable_server_load_tracking,
        seed=args.seed,
        deterministic=args.deterministic,
        mean_output_tokens=args.mean_output_tokens,
        speed=args.speed,
        time=TimeModel(**{name: getattr(args, f"time_{name}") for name in _TIME_MODEL}),
        timings=Timings(**{f"{name}_s": getattr(args, f"{name}_seconds") for name in _DURATIONS}),
        journal_limit=args.journal_limit,
    )


async def serve(engine: SimEngine, *, announce: Callable[[str], None]) -> int:
    """Run one engine to its end; returns the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    announce(await engine.start())
    dying = asyncio.create_task(engine.wait_dead())
    told = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({dying, told}, return_when=asyncio.FIRST_COMPLETED)
        return EXIT_DIED if dying.done() else EXIT_OK
    finally:
        for task in (dying, told):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await engine.stop(grace_s=_STOP_GRACE_S)


command = SimEngineCommand()
