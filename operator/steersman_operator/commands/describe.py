"""``steersman describe``: everything about one thing, on a page."""

import argparse
import time
from collections.abc import Iterator

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.client.fleet import Status
from steersman_operator.commands.columns import header_of, rows_of
from steersman_operator.commands.fleet import add_directory, client_of, end_of_reader, say, warn
from steersman_operator.commands.kinds import (
    ENGINE,
    KINDS,
    PROXY,
    ROLLOUT_ENGINE,
    WEIGHT_VERSION,
    Item,
    Kind,
    NotFound,
    find,
    items_of,
    kind_of,
    name_of,
)
from steersman_operator.commands.objects import place_of
from steersman_operator.commands.progress import has_news, line_about
from steersman_operator.commands.tables import age, lines_of

Fact = tuple[str, object]


class DescribeCommand:
    """Shows pages."""

    help = "show everything about the fleet, a RolloutEngine, WeightVersion, engine or proxy"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "kind",
            nargs="?",
            metavar="KIND",
            help="rolloutengine (re), weightversion (wv), engine or proxy; without it, the fleet",
        )
        parser.add_argument("names", nargs="*", metavar="NAME", help="without one, all of the kind")
        add_directory(parser)
        self._parser = parser

    def run(self, args: argparse.Namespace) -> int:
        """Print the pages."""
        word, names = args.kind, list(args.names)
        if word is not None and "/" in word:
            word, _, name = word.partition("/")
            names.insert(0, name)
        try:
            kind = None if word is None else kind_of(word)
        except argparse.ArgumentTypeError as error:
            self._parser.error(str(error))
        status = client_of(args).status()
        try:
            for line in _pages(status, kind, names):
                say(line)
        except NotFound as error:
            warn(f"Error: {error}")
            return EXIT_FAILED
        except BrokenPipeError:
            return end_of_reader()
        return EXIT_OK


def _pages(status: Status, kind: Kind | None, names: list[str]) -> Iterator[str]:
    if kind is None:
        yield from _fleet(status)
        return
    items = items_of(status, kind)
    if names:
        items = [item for name in names for item in find(kind, items, name)]
    for number, item in enumerate(items):
        if number:
            yield ""
            yield ""
        yield from _page(status, kind, item)
    if not items:
        yield f"There are no {kind.plural}."


def _page(status: Status, kind: Kind, item: Item) -> Iterator[str]:
    if kind is ROLLOUT_ENGINE:
        yield from _rollout_engine(item)
    elif kind is ENGINE:
        yield from _engine(item)
    elif kind is PROXY:
        yield from _proxy(status, item)
    else:
        yield from _weight_version(item)


def _facts(*facts: Fact) -> Iterator[str]:
    """Titles and values; what is not known is left out."""
    known = [(title, str(value)) for title, value in facts if value not in (None, "")]
    width = max(len(title) for title, _ in known) + 1
    for title, value in known:
        yield f"{title + ':':<{width}}  {value}"


def _section(title: str, lines: Iterator[str] | list[str]) -> Iterator[str]:
    """A part of a page; left out if it is empty."""
    content = list(lines)
    if content:
        yield f"{title}:"
        yield from (f"  {line}" for line in content)


def _created(item: Item) -> str:
    created = item.get("created")
    return "" if created is None else age(time.time() - created)


def _manifest(item: Item) -> str:
    return place_of(item) if item.get("file") else ""


# --- the pages ------------------------------------------------------------------------------------


def _fleet(status: Status) -> Iterator[str]:
    operator = status["operator"]
    published = "" if operator["published"] else ", no table published yet"
    yield from _facts(
        ("Endpoint", status["endpoint"]),
        (
            "Operator",
            f"pid {operator['pid']}, up for {age(operator['uptime'])}, term {operator['term']}",
        ),
        ("Metrics", operator["metrics_url"]),
        ("Table", f"{operator['epoch']}{published}"),
    )
    yield from _section("Manifest errors", list(status["errors"]))
    yield from _section("Manifest warnings", list(status["warnings"]))
    for kind in KINDS:
        items = items_of(status, kind)
        if kind is ROLLOUT_ENGINE:
            items = [item | {"epoch": operator["epoch"]} for item in items]
        title = {
            ROLLOUT_ENGINE.name: "RolloutEngines",
            WEIGHT_VERSION.name: "WeightVersions",
            ENGINE.name: "Engines",
            PROXY.name: "Proxies",
        }[kind.name]
        yield from _section(title, _table(kind, items) if items else [])


def _table(kind: Kind, items: list[Item]) -> list[str]:
    rows = rows_of(kind, items, wide=False, now=time.time())
    return lines_of([header_of(kind, wide=False), *rows])


def _rollout_engine(pool: Item) -> Iterator[str]:
    counts = pool["counts"]
    parts = [f"{counts['total']} in all", f"{counts['ready']} ready", f"{counts['open']} open"]
    parts += [f"{counts[name]} {name}" for name in ("paused", "asleep") if counts[name]]
    overrides = [f"{one['engine']}: {one['state']}" for one in pool["overrides"]]
    yield from _facts(
        ("Name", pool["name"]),
        ("Manifest", _manifest(pool)),
        ("Age", _created(pool)),
        ("Generation", pool["generation"]),
        ("Model", ", ".join(pool["models"]) + (" (default)" if pool["default"] else "")),
        ("Runtime", pool["runtime"]),
        ("State", pool["state"]),
        ("Overrides", ", ".join(overrides)),
        ("Version", pool["fleet_max"] or "none"),
        ("Target", _target(pool)),
        ("Drift", pool["drift"]),
        ("Unreachable proxy", pool["on_unreachable_proxy"]),
        ("Engines", ", ".join(parts)),
    )
    yield from _section("Manifest errors", list(pool["manifest_errors"]))
    yield from _section("Conditions", _conditions(pool))
    engines = [engine | {"pool": pool["name"]} for engine in pool["engines"]]
    yield from _section("Engines", _table(ENGINE, engines) if engines else [])
    standing = [f"{engine['name']}: {line_about(engine)}" for engine in engines if has_news(engine)]
    yield from _section("On their way, or in trouble", standing)


def _target(pool: Item) -> str:
    """The weights that the engines are to have, and how far they have come."""
    target = pool["target"]
    if target is None:
        return ""
    source = f"{target['source']} {target['path']}".rstrip()
    paused = ", paused" if pool["rollout_paused"] else ""
    synced, total = pool["weights"]["synced"], pool["weights"]["total"]
    return f"{target['version']} ({source}), {synced} of {total} engines have it{paused}"


def _conditions(pool: Item) -> list[str]:
    rows = [["TYPE", "STATUS", "REASON", "MESSAGE"]]
    rows += [
        [one["type"], one["status"], one["reason"], one["message"]] for one in pool["conditions"]
    ]
    return lines_of(rows)


def _engine(engine: Item) -> Iterator[str]:
    yield from _facts(
        ("Name", name_of(ENGINE, engine)),
        ("Address", engine["id"]),
        ("URL", engine["url"]),
        ("Runtime", engine["runtime"]),
        ("Role", engine["role"]),
        ("Desired state", engine["desired"].capitalize()),
        ("State", engine["control"].capitalize()),
        ("Gate", engine["gate"]),
        ("Phase", engine["phase"]),
        ("Stands", line_about(engine) if has_news(engine) else ""),
        ("In flight", engine["in_flight"]),
        ("Version", engine["version"] or "none"),
        ("Trust", engine["trust"]),
        ("Reachable", "yes" if engine["reachable"] else "no"),
        ("Boot", engine["boot_id"]),
    )


def _proxy(status: Status, proxy: Item) -> Iterator[str]:
    acked, epoch = proxy["acked"] or "nothing", status["operator"]["epoch"]
    table = acked if acked == epoch else f"{acked}, the newest is {epoch}"
    heard = proxy["heard_age"]
    yield from _facts(
        ("Name", proxy["uid"]),
        ("Boot", proxy["boot"]),
        ("Process", proxy["pid"]),
        ("Connected", "yes" if proxy["connected"] else "no"),
        ("Listed", "yes" if proxy["listed"] else "no"),
        ("Table acknowledged", table),
        ("Heard", "never" if heard is None else f"{age(heard)} ago"),
        ("Metrics", proxy["metrics_url"]),
        ("Endpoint", status["endpoint"]),
    )


def _weight_version(version: Item) -> Iterator[str]:
    yield from _facts(
        ("Name", version["name"]),
        ("Manifest", _manifest(version)),
        ("Age", _created(version)),
        ("Model", version["model"]),
        ("Version", version["version"]),
        ("Ordinal", version["ordinal"]),
        ("Source", version["source"]),
        ("Digest", version["digest"]),
        ("Checksum", version["spec"].get("checksum")),
        ("Wanted by", ", ".join(version["wanted_by"])),
        ("Engines", f"{version['engines']} have it"),
    )


command = DescribeCommand()
