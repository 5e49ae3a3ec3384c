"""``steersman explain``: each engine of a pool with the reason why it is in or out."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman.errors import ProxyUnreachable, SteersmanError
from steersman.policy import GRAMMAR

DEFAULT_PROXY = "http://127.0.0.1:29000"
TIMEOUT = 10.0

NUMERIC = frozenset({"IN FLIGHT", "RANK"})
"""Columns that are aligned to the right."""

Row = list[str]


class ExplainCommand:
    """Asks a proxy's metrics port and shows its answer."""

    help = "show for each engine why it may or may not take a request"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("model", nargs="?", metavar="MODEL", help="the request's model")
        parser.add_argument("--policy", metavar="P", help=f"version policy: {GRAMMAR}")
        parser.add_argument("--key", metavar="K", help="routing key; shows each engine's rank")
        parser.add_argument("--target", metavar="T", help="x-smg-target-worker: an id or a URL")
        parser.add_argument("--pool", metavar="NAME", help="the pool, instead of MODEL")
        parser.add_argument(
            "--proxy",
            metavar="URL",
            help=f"the metrics port of the proxy (default: one of the fleet, else {DEFAULT_PROXY})",
        )
        parser.add_argument(
            "-f",
            "--dir",
            dest="directory",
            metavar="DIR",
            default=os.environ.get("STEERSMAN_DIR"),
            help="directory of the fleet that `steersman up` runs (default: $STEERSMAN_DIR)",
        )
        parser.add_argument(
            "-o",
            "--output",
            choices=("table", "wide", "json", "yaml"),
            default="table",
            help="table, wide (more columns), json or yaml (default: %(default)s)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the explanation; 1 if no engine is eligible."""
        members = {
            "model": args.model,
            "pool": args.pool,
            "policy": args.policy,
            "key": args.key,
            "target": args.target,
        }
        proxy = args.proxy or proxy_of(args.directory)
        content = fetch(proxy, {name: value for name, value in members.items() if value})
        match args.output:
            case "json":
                print(json.dumps(content, indent=2))
            case "yaml":
                print("\n".join(yaml_lines(content)))
            case _:
                show(content, wide=args.output == "wide", console=Console())
        eligible = any(engine["eligible"] for engine in content["engines"])
        return EXIT_OK if eligible else EXIT_FAILED


def proxy_of(directory: str | None) -> str:
    """The metrics port of a proxy of the fleet in ``directory``; the default one without it.

    :raises ProxyUnreachable: if no fleet has been run there.
    """
    if directory is None:
        return DEFAULT_PROXY
    account = Path(directory, ".steersman", "proxies.json")
    try:
        processes = json.loads(account.read_bytes())["processes"]
        urls = [str(process["metrics_url"]) for process in processes if process["pid"] is not None]
    except (OSError, ValueError, KeyError, TypeError):
        urls = []
    if not urls:
        raise ProxyUnreachable(
            f"no proxy of a fleet runs in {directory}; start one with `steersman up -f {directory}`, "
            "or name a proxy with --proxy"
        )
    return urls[0]


def fetch(proxy: str, query: dict[str, str]) -> dict[str, Any]:
    """The explanation of the proxy whose metrics port is at ``proxy``.

    :raises ProxyUnreachable: if there is no proxy.
    :raises SteersmanError: with the proxy's words, if it refuses the question.
    """
    base = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(base).scheme not in ("http", "https"):
        raise ProxyUnreachable(f"{proxy!r} is not an http or https URL; {ProxyUnreachable.remedy}")
    url = f"{base.rstrip('/')}/explain?{urlencode(query)}"
    # The environment's HTTP proxy is for the internet, not for the machine next door.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT) as answer:
            content = json.load(answer)
    except HTTPError as error:
        with error:
            raise SteersmanError(_words(error)) from None
    except (URLError, OSError, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        raise ProxyUnreachable(
            f"no proxy answers at {base}: {cause}. {ProxyUnreachable.remedy}"
        ) from None
    if not isinstance(content, dict) or "engines" not in content:
        raise ProxyUnreachable(
            f"what answers at {base} is not a proxy's metrics port. {ProxyUnreachable.remedy}"
        )
    return content


def _words(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answered {error.code}. {ProxyUnreachable.remedy}"


def show(content: dict[str, Any], *, wide: bool, console: Console) -> None:
    """Print the pool's facts, the table and the outcome.

    Where the output is not a terminal the table is plain text that is never wrapped or cut.
    """
    newest = content["fleet_max"] or "none"
    facts = [
        f"pool {content['pool']}",
        f"version policy {content['policy']}",
        f"fleet max {newest}",
        f"routing {content['routing_policy']}",
        f"table {content['epoch']}",
        f"waiting {content['waiting']}",
    ]
    header, rows = columns(content, wide=wide)
    if console.is_terminal:
        console.print(Text(" · ".join(facts), style="bold"), soft_wrap=True)
        table = _rich_table(header, rows, wrap=not wide)
        # Rather lines that the terminal folds than columns of which nothing is left.
        least = Measurement.get(console, console.options.update(max_width=10_000), table)
        console.width = max(console.width, least.maximum if wide else least.minimum)
        console.print(table, crop=False)
        console.print(Text(content["summary"], style=_STYLE[content["outcome"]]), soft_wrap=True)
        return
    lines = [", ".join(facts), *plain_lines(header, rows), content["summary"]]
    sys.stdout.write("\n".join(lines) + "\n")


_STYLE = {"select": "green", "hold": "yellow", "refuse": "red"}


def columns(content: dict[str, Any], *, wide: bool) -> tuple[Row, list[Row]]:
    """Titles and cells. ``RANK`` is there if the request has a routing key."""
    ranked = any(engine["rank"] is not None for engine in content["engines"])
    header = ["ENGINE", "VERSION", "STATE", "GATE", "IN FLIGHT", "VERDICT", "WHY"]
    extra = ["ROLE", "TRUST", "URL"] if wide else []
    header[5:5] = [*(["RANK"] if ranked else []), *extra]
    rows = []
    for engine in content["engines"]:
        reason = engine["reason"]
        verdict = reason if reason is not None else "eligible"
        row = [
            engine["id"],
            engine["version"] or "-",
            engine["control"],
            engine["gate"],
            str(engine["in_flight"]),
            verdict,
            "" if reason is None else engine["sentence"],
        ]
        more = [engine["role"], engine["trust"], engine["url"]] if wide else []
        row[5:5] = [*([str(engine["rank"] or "-")] if ranked else []), *more]
        rows.append(row)
    return header, rows


def plain_lines(header: Row, rows: list[Row]) -> list[str]:
    """The table with columns aligned by spaces, for pipes and files."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if title in NUMERIC else cell.ljust(width)
            for title, cell, width in zip(header, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _rich_table(header: Row, rows: list[Row], *, wrap: bool) -> Table:
    """The table with colours. If ``wrap``, the sentences may take several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(
            title,
            justify="right" if title in NUMERIC else "left",
            no_wrap=title != "WHY" or not wrap,
            min_width=24 if title == "WHY" else None,
        )
    place = header.index("VERDICT")
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[place].stylize("green" if row[place] == "eligible" else "red")
        table.add_row(*cells)
    return table


def yaml_lines(content: Any, *, indent: str = "") -> list[str]:
    """JSON's values as YAML. Texts stay quoted, so that ``no`` and ``042`` are texts again."""
    lines: list[str] = []
    match content:
        case dict() if content:
            for name, value in content.items():
                lines += _yaml_member(f"{indent}{name}:", value, indent=indent)
        case list() if content:
            for value in content:
                inner = yaml_lines(value, indent=indent + "  ")
                lines += [f"{indent}- {inner[0].lstrip()}", *inner[1:]]
        case _:
            lines.append(indent + json.dumps(content))
    return lines


def _yaml_member(title: str, value: Any, *, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [title, *yaml_lines(value, indent=indent + "  ")]
    return [f"{title} {json.dumps(value)}"]


command = ExplainCommand()
