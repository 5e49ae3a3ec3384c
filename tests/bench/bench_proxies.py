"""What a forwarded request costs: Steersman beside nginx, haproxy and the Rust gateways.

    python -m tests.bench.bench_proxies [--quick] [--json FILE] [--peers DIR] [--install]
                                        [--rounds N] [--only NAME,...] [--loads NAME,...]

Real processes over loopback: each proxy on one core, before two engines that cost next to nothing,
which share the other core with the load generator (both in C, compiled at the start; see
``proxies/engine.c`` and ``proxies/load.c``). Everything gets the same requests, with the ten headers
of an OpenAI client, a session id and lengths that vary. Each load is put on one proxy after the
other, again and again; quoted are medians over these rounds, and ratios of medians and of rounds.

* *CPU* is user and system time of the proxy's processes within the window, from their process
  clocks, per answer or per chunk that arrived whole and right.
* *carried*: chunks that arrived as a share of those that the streams were to have.
* *added to TTFT*: p50 until the first byte of a stream's body, less that without a proxy.
* *memory*: resident, after a warm-up, and under 1,000 streams.

smg, sglang-router and vllm-router are looked for in environments of their own below ``--peers DIR``;
``--install`` makes those that are missing. A proxy that is not installed has a row that says so.
Nothing is judged with ``--quick``, which leaves those three out. A whole run ends with trials of what
each does beside passing requests on (``proxies/trials.py``). Steersman runs with everything on:
table, routing keys, stamps, breaker, metrics and an API key; without the access log.
"""

import argparse
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.proxies import report
from tests.bench.proxies.loads import LOADS, Load
from tests.bench.proxies.pair import NoCompilerError, Pair
from tests.bench.proxies.peers import DIRECT, SUBJECTS, Found, Missing, Subject, install
from tests.bench.proxies.processes import Cores
from tests.bench.proxies.rounds import Measured, Series, measure, memory_at_rest
from tests.bench.proxies.trials import tried
from tests.bench.support import arguments, conclude

ROUNDS = 7
FOLDERS = ("dataplane/steersman", "dataplane/steersman_proxy", "tests/bench/proxies")


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--peers", metavar="DIR", type=Path, help="environments of the gateways")
    parser.add_argument("--install", action="store_true", help="make the missing ones with pip")
    parser.add_argument("--rounds", metavar="N", type=int, help=f"by default {ROUNDS}")
    parser.add_argument("--only", metavar="NAMES", help=", ".join(s.name for s in SUBJECTS))
    parser.add_argument("--loads", metavar="NAMES", help=", ".join([*_loads(), report.IDLE]))
    args = parser.parse_args()
    if args.rounds is not None and args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.install and args.peers is None:
        parser.error("--install needs --peers DIR")
    return args


def _loads() -> dict[str, Load]:
    return {load.name: load for load in LOADS}


def chosen(words: str | None, known: Sequence[str], what: str) -> list[str]:
    """The names of a comma-separated list, in the order of ``known``."""
    if words is None:
        return list(known)
    wanted = [word.strip() for word in words.split(",")]
    for word in wanted:
        if word not in known:
            raise SystemExit(f"no {what} is called {word}; there are {', '.join(known)}")
    return [name for name in known if name in wanted]


def found(args: argparse.Namespace) -> list[tuple[Subject, Found | Missing]]:
    """The subjects of this run, each with what was found of it."""
    names = chosen(args.only, [subject.name for subject in SUBJECTS], "proxy")
    result: list[tuple[Subject, Found | Missing]] = []
    for subject in SUBJECTS:
        if subject.name not in names:
            continue
        if args.quick and not subject.quick and args.only is None:
            continue
        there = subject.find(args.peers)
        if isinstance(there, Missing) and subject.package and args.install:
            print(f"installing {subject.package}", flush=True)
            args.peers.mkdir(parents=True, exist_ok=True)
            install(subject, args.peers)
            there = subject.find(args.peers)
        if isinstance(there, Missing):
            print(f"{subject.name}: not installed ({there.why})", flush=True)
        result.append((subject, there))
    return result


def tell(load: str, proxy: str, series: Series) -> None:
    """One line for each run."""
    sample, errors = series.samples[-1], series.errors[-1]
    if sample is None:
        print(f"{load:13} {proxy:18} no figure: {series.notes[-1]}", flush=True)
        return
    parts = [f"{sample['cpu_us']:7.1f} µs CPU", f"{sample['per_second']:9.0f}/s"]
    parts.append(f"core {sample['busy']:4.0%}")
    if "carried" in sample:
        parts.append(f"carried {sample['carried']:6.1%}")
    if "ttft_added_us" in sample:
        parts.append(f"ttft +{sample['ttft_added_us'] / 1e3:.2f} ms")
    parts.append(f"rss {sample['rss_mb']:.1f} MB")
    if errors:
        parts.append(f"ERRORS {errors}")
    print(f"{load:13} {proxy:18} {'  '.join(parts)}", flush=True)


def run(args: argparse.Namespace, subjects: Sequence[tuple[Subject, Found]]) -> Measured:
    cores = Cores.of_this_machine()
    names = chosen(args.loads, [*_loads(), report.IDLE], "load")
    loads = [load.shortened() if args.quick else load for load in LOADS if load.name in names]
    with tempfile.TemporaryDirectory(prefix="bench-pair-") as folder:
        pair = Pair(Path(folder), core=cores.load)
        if not loads:
            return memory_at_rest(subjects, pair=pair, cores=cores)
        return measure(
            subjects,
            loads,
            pair=pair,
            cores=cores,
            rounds=args.rounds or (1 if args.quick else ROUNDS),
            restart=not args.quick,
            tell=tell,
        )


def command(args: argparse.Namespace) -> str:
    """How this run is repeated; without the places of this machine."""
    words = ["python -m tests.bench.bench_proxies"]
    words += ["--quick"] * args.quick + ["--peers DIR"] * (args.peers is not None)
    words += [f"--rounds {args.rounds}"] * (args.rounds is not None)
    words += [f"--only '{args.only}'"] * (args.only is not None)
    words += [f"--loads {args.loads}"] * (args.loads is not None)
    return " ".join(words)


def prepare() -> None:
    """This process: ends on SIGTERM with its children, off the proxies' core, enough files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    args = parsed()
    prepare()
    subjects = found(args)
    there = [(subject, one) for subject, one in subjects if isinstance(one, Found)]
    cores = Cores.of_this_machine()
    try:
        measured = run(args, there)
    except NoCompilerError as why:
        print(f"bench_proxies: {why}", file=sys.stderr)
        return 2
    document: dict[str, Any] = report.results(subjects, LOADS, measured)
    partial = args.only is not None or args.loads is not None
    print(f"\n{report.summary(document)}")
    if not partial:
        print(f"\n{report.main_table(document)}\n\n{report.target_table(document)}")
    targets = document.pop("targets")
    if not partial and not args.quick:
        document["trials"] = {
            subject.name: tried(subject, one) for subject, one in there if subject.name != DIRECT
        }
    lines = report.missed({**document, "targets": targets})
    unjudged = sum(target["met"] is None for target in targets)
    return conclude(
        "proxies",
        args,
        folders=FOLDERS,
        goal={"what": f"{len(targets) - unjudged} of {len(targets)} targets judged"},
        missed=lines,
        command=command(args),
        rounds=args.rounds or (1 if args.quick else ROUNDS),
        cores=cores.described(),
        targets=targets,
        **document,
    )


if __name__ == "__main__":
    raise SystemExit(main())
