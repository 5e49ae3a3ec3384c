"""``docs/configuration``: the keys of the configuration and of the table file, from their models.

Each key's meaning is the docstring of its attribute, and its default the one that the program uses.
The examples in the pages are the files of ``docs/examples``, which the tests read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

from steersman.documents.model import Model, element_of, is_mapping, section_of, without_none
from steersman.documents.routing import Breaker, ExchangeTimeouts, Hold, Routing
from steersman.documents.values import Kind
from steersman.settings import PoolSettings
from steersman_proxy.config.overrides import FLAGS, SWITCHES
from steersman_proxy.config.schema import ProxyConfig
from steersman_proxy.tablefile.schema import MAX_ENGINES, TableFile

DOCS = Path(__file__).parents[2] / "docs"

PROXY_INTRODUCTION = """\
# Configuration of the proxy

`steersman proxy --config FILE --table FILE`. The configuration says how the proxy behaves and is
read once, at start; the [table](table.md) says what engines there are and is read again whenever it
changes. Without `--config` everything has its default.

The file is YAML 1.2 (`.yaml`, `.yml`) or TOML (`.toml`). An unknown key, a key given twice and a
value of the wrong kind are errors; `steersman check FILE` shows all of them at once, each with its
line. A *duration* is a number of seconds or a text such as `500ms`, `30s`, `10m`, `1h` or `1h30m`;
a *size* is a number of bytes or a text such as `512KiB`, `8MiB` or `2GiB` (`MB` and the like are
decimal). Relative paths in the file are relative to the directory of the file.
"""

TABLE_INTRODUCTION = f"""\
# The table file

The fleet as one file: pools, and the engines of each, at most {MAX_ENGINES:,}. `steersman table init
--engine URL ...` writes a first one by asking the engines.

The proxy reads the file again whenever it changes, also when a symbolic link gets another target
(as with a mounted ConfigMap). A bad file changes nothing: the last good table stays in force, and
the log and `/status` say file, line and key of each problem. **Write a new file beside it and
rename it into place**, as half a file can look like a whole one.

The file is YAML 1.2 (`.yaml`, `.yml`) or TOML (`.toml`). A weight version is text: a number is taken
as it is written, so `1.10`, `042` and `1e3` stay what they are.
"""

TABLE_NOTES = """\
## Gate, control and memory

Three things can keep an engine from getting requests, and they are independent of each other:

| Key | Means | A request |
|---|---|---|
| `gate: closed` | do not send here, for now | waits, if the engine could serve it |
| `control: paused` | generation is paused | waits, as above |
| `control: asleep` | memory is given up | does not wait for this engine |

An engine that sleeps and will wake up paused is written as `control: asleep` with `paused: true`;
`released` says which memory it gave up, by default weights and KV cache. The gate counter that other
parts of the proxy use goes up at each change of `gate` and begins at 0 with each new engine.

## The newest version of a pool

With `fleetMax` the file says it. Without, the proxy finds out:

* At its first read every `verified` version counts.
* Later a version counts once an engine is seen *serving* with it: gate open, control active,
  verified. So a new version that is written behind a closed gate is not the newest one yet.
* An engine goes on counting with that version while it is paused, asleep or closed. It stops when
  it leaves the file, is `failed`, or its trust is `uncertain`; or when it serves again with another
  version.

The newest of the versions that count is decided as everywhere: by `ordinals` if there are any, else
by number if any is a number, else by text.

## Changing a fleet

A rolling update of one engine, as edits of the file: `gate: closed`; when its requests are done (see
`/status`), update its weights; then set the new `weightVersion` and `gate: open` in one edit.
"""


def pages() -> Mapping[str, str]:
    """Both pages."""
    return {"configuration/proxy.md": _proxy_page(), "configuration/table.md": _table_page()}


def _proxy_page() -> str:
    parts = [PROXY_INTRODUCTION]
    parts += sections(ProxyConfig)
    parts += [_flags(), _example("proxy")]
    return "\n".join(parts)


def _table_page() -> str:
    parts = [TABLE_INTRODUCTION]
    parts += sections(TableFile)
    parts += [TABLE_NOTES, _example("table")]
    return "\n".join(parts)


ROUTING_OF_THE_FILE = (
    "The keys of [`routing`](#routing), each with the value of `routing` as its default."
)


def sections(
    schema: type[Model], *, path: str = "", routing: str = ROUTING_OF_THE_FILE
) -> Iterator[str]:
    """The tables of a section and of the sections below it, one heading each.

    ``routing`` is said of a section of routing keys that is not at the top.
    """
    leaves = [field for field in _fields(schema) if _is_leaf(field[1])]
    if leaves:
        title = f"`{path}`" if path else "Top level"
        yield f"## {title}\n\n{_sentence(schema)}\n"
        yield "| Key | Value | Default | Meaning |\n|---|---|---|---|"
        for key, field in leaves:
            yield _row(schema, key, field)
        yield ""
    for key, field in _fields(schema):
        section = section_of(field.annotation)
        if section is not None and not (path and section is Routing):
            yield from sections(section, path=f"{path}{'.' if path else ''}{key}", routing=routing)
        elif section is Routing:
            yield f"## `{path}.{key}`\n\n{routing}\n"
            continue
        inner = element_of(field.annotation)
        element = section_of(inner) if inner is not None else None
        if element is not None:
            mark = ".NAME" if is_mapping(field.annotation) else "[]"
            yield from sections(
                element, path=f"{path}{'.' if path else ''}{key}{mark}", routing=routing
            )


def _is_leaf(field: FieldInfo) -> bool:
    """Whether a key has no keys of its own, which some sections have not either."""
    section = section_of(field.annotation)
    return section is None or not section.model_fields


def _row(schema: type[Model], key: str, field: FieldInfo) -> str:
    meaning = " ".join((field.description or "").split())
    return f"| `{key}` | {_kind(field)} | {_default(schema, field)} | {_cell(meaning)} |"


def _fields(schema: type[Model]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in schema.model_fields.items():
        yield field.alias or name, field


def _kind(field: FieldInfo) -> str:
    marks = [mark.text for mark in field.metadata if isinstance(mark, Kind)]
    return marks[0] if marks else _kind_of(field.annotation)


def _kind_of(kind: Any) -> str:
    """What to write for a type annotation."""
    kind = without_none(kind)
    if get_origin(kind) is Annotated:
        marks = [mark.text for mark in kind.__metadata__ if isinstance(mark, Kind)]
        return marks[0] if marks else _kind_of(kind.__origin__)
    if section_of(kind) is not None:
        return "keys"
    arguments = get_args(kind)
    if is_mapping(kind):
        return f"{_kind_of(arguments[1])} by {_kind_of(arguments[0])}"
    if get_origin(kind) is list:
        return f"list of {_kind_of(arguments[0])}"
    return {bool: "`true` or `false`", str: "text"}.get(kind, getattr(kind, "__name__", str(kind)))


def _default(schema: type[Model], field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if value is None and schema in _INHERITED:
        name = next(name for name, found in schema.model_fields.items() if found is field)
        value = getattr(_INHERITED[schema], name)
    if value is None or value in ([], {}):
        return "none"
    return f"`{_written(value, kind=_kind(field))}`"


_INHERITED: Mapping[type[Model], Any] = {
    Routing: PoolSettings(),
    Hold: PoolSettings().hold,
    ExchangeTimeouts: PoolSettings().timeouts,
    Breaker: PoolSettings().breaker,
}
"""Sections whose missing keys are inherited, and where the last of them is inherited from."""


def _written(value: Any, *, kind: str) -> str:
    """A value as a person would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if kind.startswith("duration"):
        return _duration(value)
    if kind.startswith("size"):
        return _size(value)
    return str(value)


def _duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds else "0"


def _size(count: int) -> str:
    for unit, length in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def _flags() -> str:
    rows = ["## Flags\n", "Each wins over its key in the file.\n", "| Flag | Key |\n|---|---|"]
    rows += [f"| `{flag.name} {flag.metavar}` | `{'.'.join(flag.path)}` |" for flag in FLAGS]
    for flag in SWITCHES:
        off = flag.name.replace("--", "--no-", 1)
        rows.append(f"| `{flag.name}`, `{off}` | `{'.'.join(flag.path)}` |")
    return "\n".join([*rows, ""])


def _example(name: str) -> str:
    text = (DOCS / "examples" / f"{name}.yaml").read_text()
    return (
        f"## Example\n\n[`{name}.yaml`](../examples/{name}.yaml); the same as "
        f"[`{name}.toml`](../examples/{name}.toml).\n\n```yaml\n{text}```\n"
    )


def _sentence(schema: type[Model]) -> str:
    return " ".join((schema.__doc__ or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
