"""``steersman check FILE...``: say everything that is wrong with configuration and table files."""

import argparse
import sys
from pathlib import Path

import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman.documents import Document, load_document
from steersman.errors import DocumentError
from steersman.table import Table
from steersman_proxy.config import LoadedConfig, pools_without_row
from steersman_proxy.config.load import read_config
from steersman_proxy.settings import ProxySettings
from steersman_proxy.tablefile import TableReader, read_table_file

KINDS = ("config", "table")


class Outcome(msgspec.Struct, kw_only=True):
    """What checking one file showed."""

    path: str
    what: str = ""
    """What the file is, if it is good."""
    problems: list[str] = []
    warnings: list[str] = []
    settings: ProxySettings | None = None
    table: Table | None = None


class CheckCommand:
    """Check files without running anything."""

    help = "check configuration and table files and show every problem with its line"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="a YAML or TOML file")
        parser.add_argument(
            "--kind",
            choices=KINDS,
            help="what the files are; by default a file with a list of `pools` is a table",
        )

    def run(self, args: argparse.Namespace) -> int:
        outcomes = [check(path, kind=args.kind) for path in args.files]
        tables = [outcome.table for outcome in outcomes if outcome.table]
        for outcome in outcomes:
            if outcome.settings and len(tables) == 1:
                missing = pools_without_row(outcome.settings, tables[0])
                outcome.warnings += [f"{outcome.path}: {text}" for text in missing]
            for problem in outcome.problems:
                print(problem, file=sys.stderr)
            for warning in outcome.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            if not outcome.problems:
                print(f"{outcome.path}: ok ({outcome.what})")
        return EXIT_FAILED if any(outcome.problems for outcome in outcomes) else EXIT_OK


def check(path: str | Path, *, kind: str | None = None) -> Outcome:
    """Check one file; ``kind`` is one of :data:`KINDS`, or ``None`` to find out."""
    outcome = Outcome(path=str(path))
    try:
        document = load_document(path)
        if (kind or kind_of(document)) == "table":
            _check_table(document, outcome)
        else:
            _check_config(document, outcome)
    except DocumentError as error:
        outcome.problems = error.problems
    return outcome


def kind_of(document: Document) -> str:
    """Which schema a file follows: a table has its pools in a list, a configuration by name."""
    pools = document.data.get("pools")
    if isinstance(pools, list) or (pools is None and set(document.data) == {"pools"}):
        return "table"
    return "config"


def _check_table(document: Document, outcome: Outcome) -> None:
    table = TableReader().read(read_table_file(document))
    outcome.table = table
    pools, engines = len(table.pools), len(table.engines)
    outcome.what = f"fleet table, {_count(pools, 'pool')}, {_count(engines, 'engine')}"


def _check_config(document: Document, outcome: Outcome) -> None:
    loaded: LoadedConfig = read_config(document)
    outcome.settings = loaded.settings
    outcome.warnings = list(loaded.warnings)
    outcome.what = "proxy configuration"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


command = CheckCommand()
