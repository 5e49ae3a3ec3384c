"""``steersman get``: what there is, as a table or as objects."""

import argparse
import json
import time
from collections.abc import Iterable, Sequence

import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.client.fleet import Status
from steersman_operator.commands.columns import header_of, rows_of
from steersman_operator.commands.fleet import (
    EXIT_INTERRUPTED,
    add_directory,
    client_of,
    end_of_reader,
    say,
    warn,
)
from steersman_operator.commands.kinds import (
    ENGINE,
    KINDS,
    ROLLOUT_ENGINE,
    WORDS,
    Item,
    Kind,
    NotFound,
    find,
    items_of,
    kind_of,
    name_of,
    wrong_of,
)
from steersman_operator.commands.objects import list_of, object_of
from steersman_operator.commands.tables import Row, is_coloured, line_of, lines_of, widths_of
from steersman_operator.commands.yaml_text import yaml_text

ALL = "all"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be shown, and how."""

    kinds: tuple[Kind, ...]
    names: tuple[str, ...] = ()
    pool: str | None = None
    output: str = "table"
    header: bool = True

    @property
    def prefixed(self) -> bool:
        """Whether a name alone would not say what it is of."""
        return len(self.kinds) > 1

    @property
    def wide(self) -> bool:
        """Whether there is room for everything."""
        return self.output == "wide"


class GetCommand:
    """Shows the fleet."""

    help = "show RolloutEngines, WeightVersions, engines and proxies"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "kind",
            nargs="?",
            default=ALL,
            metavar="KIND",
            help="all, rolloutengines (re), weightversions (wv), engines or proxies; or KIND/NAME",
        )
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
        add_directory(parser)
        parser.add_argument(
            "-o",
            "--output",
            choices=("table", "wide", "json", "yaml", "name"),
            default="table",
            help="table, wide (more columns), json, yaml or name (default: %(default)s)",
        )
        parser.add_argument(
            "-w", "--watch", action="store_true", help="go on, and show each change"
        )
        parser.add_argument("--pool", metavar="POOL", help="only the engines of this RolloutEngine")
        parser.add_argument("--no-headers", action="store_true", help="tables without their titles")
        self._parser = parser

    def run(self, args: argparse.Namespace) -> int:
        """Show it; 1 if something that was named is not there."""
        wanted = self._wanted(args)
        client = client_of(args)
        try:
            if not args.watch:
                status = client.status()
                _warn_of(wrong_of(status))
                return show(wanted, status)
            return _watch(wanted, client.watch(on_lost=warn))
        except BrokenPipeError:
            return end_of_reader()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED

    def _wanted(self, args: argparse.Namespace) -> Wanted:
        word, names = args.kind, list(args.names)
        if "/" in word:
            word, _, name = word.partition("/")
            names.insert(0, name)
        try:
            kinds = KINDS if word == ALL else (kind_of(word),)
        except argparse.ArgumentTypeError as error:
            self._parser.error(str(error))
        if names and word == ALL:
            self._parser.error("`all` takes no names")
        if args.pool is not None and kinds != (ENGINE,):
            self._parser.error("--pool goes with engines")
        return Wanted(
            kinds=kinds,
            # Also `get engines engine/a engine/b`.
            names=tuple(_bare(name, kinds[0]) for name in names),
            pool=args.pool,
            output=args.output,
            header=not args.no_headers,
        )


def _bare(name: str, kind: Kind) -> str:
    word, slash, rest = name.partition("/")
    return rest if slash and WORDS.get(word) is kind else name


def show(wanted: Wanted, status: Status) -> int:
    """Print everything once."""
    found, missing = select(wanted, status)
    some = any(items for _, items in found)
    match wanted.output:
        case "json" | "yaml":
            content = [object_of(kind, item) for kind, items in found for item in items]
            if content or not missing:
                alone = len(content) == 1 and len(wanted.names) == 1
                _print_object(wanted, content[0] if alone else list_of(content))
        case "name":
            for kind, items in found:
                for item in items:
                    say(f"{kind.name}/{name_of(kind, item)}")
        case _ if some:
            _print_tables(wanted, found)
        case _ if not missing:
            where = f" in {wanted.pool}" if wanted.pool else ""
            warn(f"No resources found{where}.")
    for sentence in missing:
        warn(f"Error: {sentence}")
    return EXIT_FAILED if missing else EXIT_OK


def select(wanted: Wanted, status: Status) -> tuple[list[tuple[Kind, list[Item]]], list[str]]:
    """What is wanted of what there is, and a sentence for each name that is not there."""
    found, missing = [], []
    if wanted.pool is not None:
        try:
            find(ROLLOUT_ENGINE, items_of(status, ROLLOUT_ENGINE), wanted.pool)
        except NotFound as error:
            return [], [str(error)]
    for kind in wanted.kinds:
        items = items_of(status, kind)
        if kind is ROLLOUT_ENGINE:
            items = [item | {"epoch": status["operator"]["epoch"]} for item in items]
        if wanted.pool is not None:
            items = [item for item in items if item["pool"] == wanted.pool]
        if wanted.names:
            chosen: dict[str, Item] = {}
            for name in wanted.names:
                try:
                    chosen |= {name_of(kind, one): one for one in find(kind, items, name)}
                except NotFound as error:
                    missing.append(str(error))
            items = list(chosen.values())
        found.append((kind, items))
    return found, missing


def _print_tables(wanted: Wanted, found: Sequence[tuple[Kind, list[Item]]]) -> None:
    first = True
    for kind, items in found:
        if not items:
            continue
        if not first:
            say("")
        first = False
        rows = _rows(wanted, kind, items)
        lines = lines_of([header_of(kind, wide=wanted.wide), *rows])
        for line in lines if wanted.header else lines[1:]:
            say(line)


def _rows(wanted: Wanted, kind: Kind, items: Sequence[Item]) -> list[Row]:
    now = time.time()
    return rows_of(kind, items, wide=wanted.wide, now=now, prefixed=wanted.prefixed)


def _print_object(wanted: Wanted, content: object) -> None:
    if wanted.output == "json":
        say(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        say(yaml_text(content))


def _warn_of(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        warn(f"Warning: {sentence}")


AGES = {"AGE", "HEARD"}
"""Columns that grow by themselves; alone they are no change."""

ROOM = {"STATE": 7, "DESIRED": 7, "GATE": 6, "PHASE": 11, "TRUST": 9, "READY": 7}
"""Characters kept free for what may come, so that the lines of a watch stay aligned."""


def _watch(wanted: Wanted, statuses: Iterable[Status]) -> int:
    """Show everything, then each thing again when it has changed."""
    seen = _Seen(wanted)
    told: set[str] = set()
    missing: list[str] = []
    for number, status in enumerate(statuses):
        wrong = wrong_of(status)
        _warn_of([sentence for sentence in wrong if sentence not in told])
        told = set(wrong)
        found, missing = select(wanted, status)
        if not number and missing:
            break
        seen.show(found)
    for sentence in missing:
        warn(f"Error: {sentence}")
    return EXIT_FAILED if missing else EXIT_OK


class _Seen:
    """What a watch has shown."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._shown: dict[str, object] = {}
        self._widths: dict[str, list[int]] = {}

    def show(self, found: Sequence[tuple[Kind, list[Item]]]) -> None:
        """Print what is new or another than it was."""
        there = set()
        for kind, items in found:
            changed = []
            for item in items:
                key = f"{kind.name}/{name_of(kind, item)}"
                there.add(key)
                content = self._content(kind, item)
                if self._shown.get(key) != content:
                    self._shown[key] = content
                    changed.append(item)
            self._print(kind, changed)
        for key in self._shown.keys() - there:
            del self._shown[key]
            warn(f"{key} is gone")

    def _content(self, kind: Kind, item: Item) -> object:
        """What counts as a change."""
        if self._wanted.output not in ("table", "wide"):
            return {name: value for name, value in item.items() if name != "heard_age"}
        titles = header_of(kind, wide=self._wanted.wide)
        (row,) = _rows(self._wanted, kind, [item])
        return [cell for title, cell in zip(titles, row, strict=True) if title not in AGES]

    def _print(self, kind: Kind, items: list[Item]) -> None:
        match self._wanted.output:
            case "json" | "yaml":
                for item in items:
                    if self._wanted.output == "yaml":
                        say("---")
                    _print_object(self._wanted, object_of(kind, item))
            case "name":
                for item in items:
                    say(f"{kind.name}/{name_of(kind, item)}")
            case _ if items:
                self._print_rows(kind, _rows(self._wanted, kind, items))

    def _print_rows(self, kind: Kind, rows: list[Row]) -> None:
        header = header_of(kind, wide=self._wanted.wide)
        widths = self._widths.get(kind.name)
        if widths is None:
            if self._widths:
                say("")
            room = ["x" * ROOM.get(title, 0) for title in header]
            widths = self._widths[kind.name] = widths_of([header, room, *rows])
            if self._wanted.header:
                say(line_of(header, widths))
        coloured = is_coloured()
        for row in rows:
            say(line_of(row, widths, coloured=coloured))


command = GetCommand()
