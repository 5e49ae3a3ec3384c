"""The columns of ``steersman get``."""

from collections.abc import Callable, Sequence

from steersman_operator.commands.kinds import (
    ENGINE,
    PROXY,
    ROLLOUT_ENGINE,
    WEIGHT_VERSION,
    Item,
    Kind,
    name_of,
)
from steersman_operator.commands.objects import place_of
from steersman_operator.commands.tables import Row, age

Cell = Callable[[Item], object]

NONE = "-"


def header_of(kind: Kind, *, wide: bool) -> Row:
    """The titles."""
    return ["NAME", *(title for title, _ in _columns(kind, wide=wide))]


def rows_of(
    kind: Kind, items: Sequence[Item], *, wide: bool, now: float, prefixed: bool = False
) -> list[Row]:
    """The cells. ``now`` is in seconds since 1970; ``prefixed`` puts the kind before each name."""
    return [
        [
            _name(kind, item, prefixed=prefixed),
            *(_text(cell(item | {"now": now})) for _, cell in _columns(kind, wide=wide)),
        ]
        for item in items
    ]


def _name(kind: Kind, item: Item, *, prefixed: bool) -> str:
    if prefixed:
        return f"{kind.name}/{name_of(kind, item)}"
    return str(item["name"]) if kind is ENGINE else name_of(kind, item)


def _text(value: object) -> str:
    return NONE if value is None or value == "" else str(value)


def _columns(kind: Kind, *, wide: bool) -> list[tuple[str, Cell]]:
    usual, more = _COLUMNS[kind.name]
    return [*usual, *more] if wide else usual


def _age(item: Item) -> str:
    created = item.get("created")
    return age(None if created is None else item["now"] - created)


def _manifest(item: Item) -> str:
    return place_of(item) if item.get("file") else ""


def _true_conditions(pool: Item) -> str:
    return ",".join(one["type"] for one in pool["conditions"] if one["status"] == "True")


def _count(name: str) -> Cell:
    return lambda pool: pool["counts"][name]


def _member(name: str) -> Cell:
    return lambda item: item.get(name)


def target_of(pool: Item) -> str | None:
    """The version that the engines of a pool are to have."""
    target = pool["target"]
    return None if target is None else str(target["version"])


def synced_of(pool: Item) -> str | None:
    """How many of a pool's engines have it."""
    if pool["target"] is None:
        return None
    return f"{pool['weights']['synced']}/{pool['weights']['total']}"


def _heard(proxy: Item) -> str:
    return "never" if proxy["heard_age"] is None else age(proxy["heard_age"])


_COLUMNS: dict[str, tuple[list[tuple[str, Cell]], list[tuple[str, Cell]]]] = {
    ROLLOUT_ENGINE.name: (
        [
            ("MODEL", lambda pool: ",".join(pool["models"])),
            ("STATE", _member("state")),
            ("READY", lambda pool: f"{pool['counts']['ready']}/{pool['counts']['total']}"),
            ("OPEN", _count("open")),
            ("PAUSED", _count("paused")),
            ("ASLEEP", _count("asleep")),
            ("VERSION", _member("fleet_max")),
            ("TARGET", target_of),
            ("SYNCED", synced_of),
            ("AGE", _age),
        ],
        [
            ("RUNTIME", _member("runtime")),
            ("EPOCH", _member("epoch")),
            ("FILE", _manifest),
            ("CONDITIONS", _true_conditions),
        ],
    ),
    WEIGHT_VERSION.name: (
        [
            ("MODEL", _member("model")),
            ("VERSION", _member("version")),
            ("ORDINAL", _member("ordinal")),
            ("SOURCE", _member("source")),
            ("WANTED-BY", lambda version: ",".join(version["wanted_by"])),
            ("ENGINES", _member("engines")),
            ("AGE", _age),
        ],
        [("DIGEST", _member("digest")), ("FILE", _manifest)],
    ),
    ENGINE.name: (
        [
            ("POOL", _member("pool")),
            ("STATE", lambda engine: engine["control"].capitalize()),
            ("DESIRED", lambda engine: engine["desired"].capitalize()),
            ("GATE", _member("gate")),
            ("PHASE", _member("phase")),
            ("VERSION", _member("version")),
            ("TRUST", _member("trust")),
        ],
        [
            ("URL", _member("url")),
            ("RUNTIME", _member("runtime")),
            ("ROLE", _member("role")),
            ("IN-FLIGHT", _member("in_flight")),
            ("PROBLEM", lambda engine: engine["problem"] or engine["withheld"]),
        ],
    ),
    PROXY.name: (
        [
            ("CONNECTED", _member("connected")),
            ("EPOCH", _member("acked")),
            ("HEARD", _heard),
            ("PID", _member("pid")),
        ],
        [("METRICS", _member("metrics_url"))],
    ),
}
