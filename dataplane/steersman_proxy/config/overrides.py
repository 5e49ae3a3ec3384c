"""Command-line flags that win over the configuration file."""

import argparse
from pathlib import Path

import msgspec

from steersman.documents.document import WrittenFloat, WrittenInt


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """A flag and the key of the file that it overrides."""

    name: str
    path: tuple[str, ...]
    help: str
    metavar: str = "TEXT"
    number: bool = False
    """Whether a text of digits means a number, as it does in a file."""
    many: bool = False
    """Whether the text is a list of texts, with commas between them."""
    is_path: bool = False
    """Whether the text is a path, relative to where the command runs."""


FLAGS: tuple[Flag, ...] = (
    Flag(name="--host", path=("listen", "host"), metavar="HOST", help="address for clients"),
    Flag(
        name="--port", path=("listen", "port"), metavar="PORT", number=True, help="port for clients"
    ),
    Flag(
        name="--metrics-host",
        path=("metrics", "host"),
        metavar="HOST",
        help="address of metrics, status and probes",
    ),
    Flag(
        name="--metrics-port",
        path=("metrics", "port"),
        metavar="PORT",
        number=True,
        help="port of metrics, status and probes",
    ),
    Flag(
        name="--policy",
        path=("routing", "policy"),
        metavar="NAME",
        help="how an engine is chosen, such as power_of_two",
    ),
    Flag(
        name="--version-policy",
        path=("routing", "versionPolicy"),
        metavar="POLICY",
        help="any, latest-only, min-version:<v> or max-staleness:<k>",
    ),
    Flag(
        name="--hold-timeout",
        path=("routing", "hold", "timeout"),
        metavar="TIME",
        number=True,
        help="how long a request may wait for an engine; 0 switches holding off",
    ),
    Flag(
        name="--max-in-flight-per-engine",
        path=("routing", "maxInFlightPerEngine"),
        metavar="N",
        number=True,
        help="requests to one engine at a time; 0 is no limit",
    ),
    Flag(
        name="--api-keys-file",
        path=("auth", "apiKeysFile"),
        metavar="FILE",
        is_path=True,
        help="keys of clients, one a line",
    ),
    Flag(
        name="--admin-key-file",
        path=("auth", "adminKeyFile"),
        metavar="FILE",
        is_path=True,
        help="the admin key",
    ),
    Flag(name="--log-format", path=("logging", "format"), metavar="FORMAT", help="text or json"),
    Flag(
        name="--log-level",
        path=("logging", "level"),
        metavar="LEVEL",
        help="debug, info, warning or error",
    ),
    Flag(
        name="--table",
        path=("table", "file"),
        metavar="FILE",
        is_path=True,
        help="the fleet table (YAML or TOML)",
    ),
    Flag(
        name="--control",
        path=("control", "addresses"),
        metavar="ADDRESS[,ADDRESS]",
        many=True,
        help="control sockets of the operators to follow, instead of a table",
    ),
)

SWITCHES: tuple[Flag, ...] = (
    Flag(name="--rl", path=("rl", "enabled"), help="awareness of weight versions"),
    Flag(name="--reuse-port", path=("listen", "reusePort"), help="share the port with others"),
    Flag(name="--access-log", path=("logging", "access"), help="one log line for each request"),
)
"""Flags that are on or, with ``--no-`` before the name, off."""


class Override(msgspec.Struct, frozen=True):
    """A value for a key of the file; ``flag`` is named in problems with it."""

    path: tuple[str, ...]
    value: object
    flag: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. Values are checked later, together with the file."""
    group = parser.add_argument_group("overrides", "each wins over its key in the configuration")
    for flag in FLAGS:
        key = ".".join(flag.path)
        group.add_argument(flag.name, metavar=flag.metavar, help=f"{flag.help} ({key})")
    for flag in SWITCHES:
        group.add_argument(
            flag.name,
            action=argparse.BooleanOptionalAction,
            default=None,
            help=f"{flag.help} ({'.'.join(flag.path)})",
        )


def overrides_of(args: argparse.Namespace) -> list[Override]:
    """The flags that were given."""
    found = []
    for flag in (*FLAGS, *SWITCHES):
        value = getattr(args, flag.name.removeprefix("--").replace("-", "_"), None)
        if value is not None:
            found.append(Override(flag.path, _value(flag, value), flag.name))
    return found


def _value(flag: Flag, value: object) -> object:
    if not isinstance(value, str):
        return value
    if flag.many:
        return [part.strip() for part in value.split(",")]
    if flag.is_path:
        # Paths in the file are relative to the file; those of the command line are not.
        return str(Path(value).absolute())
    return _number(value) if flag.number else value


def _number(text: str) -> object:
    try:
        return WrittenInt(int(text), text)
    except ValueError:
        pass
    try:
        return WrittenFloat(text)
    except ValueError:
        return text
