"""What the benchmarks share: the machine, the commit, percentiles, the document that they write.

A benchmark is run from the top of the repository: ``python -m tests.bench.bench_table``.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next(
            (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), model
        )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def commit(*folders: str) -> str:
    """The commit of the code, with a plus sign if files below ``folders`` differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short=12", "HEAD") or "unknown"
    return name + ("+" if git("status", "--porcelain", "--", *folders) else "")


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that is not below ``share`` of all of them."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Sequence[float], *, unit: float, digits: int = 3) -> dict[str, Any]:
    """How samples in seconds are spread, in multiples of ``unit`` seconds."""

    def shown(value: float) -> float:
        return round(value / unit, digits)

    return {
        "p50": shown(quantile(samples, 0.5)),
        "p99": shown(quantile(samples, 0.99)),
        "max": shown(max(samples)),
        "samples": len(samples),
    }


def arguments(doc: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; no goals")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures to FILE too")
    return parser


def conclude(
    name: str,
    args: argparse.Namespace,
    *,
    folders: Sequence[str],
    goal: dict[str, Any],
    missed: Sequence[str],
    results: Any,
    **more: Any,
) -> int:
    """Write the document, say whether the goal was met, and return the exit code.

    ``missed`` are sentences. With ``--quick`` nothing is judged: it measures too briefly to tell.
    """
    document = {
        "benchmark": name,
        "machine": machine(),
        "commit": commit(*folders),
        "command": f"python -m tests.bench.bench_{name}" + (" --quick" if args.quick else ""),
        **more,
        "goal": goal,
        "goal_met": not missed,
        "results": results,
    }
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.quick:
        print("\nGoal: not judged (--quick)")
        return 0
    for sentence in missed:
        print(f"over the goal: {sentence}", file=sys.stderr)
    if not missed:
        print(f"\nGoal: met, {goal['what']}")
    return 1 if missed else 0


async def end_of_input() -> None:
    """Whoever started this process has ended, or wants it to end."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            ended.set()

    loop.add_reader(descriptor, readable)
    await ended.wait()
