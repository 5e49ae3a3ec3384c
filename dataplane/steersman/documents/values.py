"""The kinds of values that several schemas share: durations, sizes, ports, choices, versions.

Each is an ``Annotated`` type whose :class:`Kind` says in one word, for the documentation, what to
write.
"""

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import msgspec
from pydantic import PlainValidator, SecretStr

from steersman.documents.document import WrittenFloat, WrittenInt
from steersman.documents.problems import number, one_of, what
from steersman.durations import EXAMPLES, parse_duration
from steersman.errors import InvalidVersionPolicy
from steersman.policy import VersionPolicy, parse_policy
from steersman.versions import UNVERSIONED, parse_version

MAX_SECONDS = 30 * 86400.0

_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|MB|GB|KiB|MiB|GiB)")


class Kind(msgspec.Struct, frozen=True):
    """What a value is, in the words of the documentation."""

    text: str


def seconds(value: Any) -> float:
    """The seconds of a number or of a text such as ``500ms``, ``30s``, ``1h30m``.

    :raises ValueError: if it is neither, negative, not finite or longer than 30 days.
    """
    if isinstance(value, str):
        written = parse_duration(value)
        if written is None:
            raise ValueError(f"must be seconds or a text such as {EXAMPLES}, found {value[:40]!a}")
        result = written
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be seconds or a text such as 30s, found {what(value)}")
    else:
        # A float, as numbers that remember their text are not for messages.
        result = float(_finite(value))
    if result < 0:
        raise ValueError(f"must not be negative, found {number(value)}")
    if result > MAX_SECONDS:
        raise ValueError(f"must not be longer than 30 days (in seconds), found {number(value)}")
    return result


def positive_seconds(value: Any) -> float:
    """As :func:`seconds`, but not zero."""
    result = seconds(value)
    if result == 0:
        raise ValueError("must be longer than 0")
    return result


def size(value: Any) -> int:
    """The bytes of a whole number or of a text such as ``8MiB``.

    :raises ValueError: if it is neither or negative.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(
                f"must be bytes or a text such as 512KiB, 8MiB or 2GiB, found {value[:40]!a}"
            )
        return int(float(match[1]) * _BYTES[match[2]])
    return whole(value)


def positive_size(value: Any) -> int:
    """As :func:`size`, but not zero."""
    result = size(value)
    if result == 0:
        raise ValueError("must be more than 0 bytes")
    return result


def whole(value: Any) -> int:
    """A whole number from 0 to 2**53.

    :raises ValueError: if it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a whole number, found {what(value)}")
    result = _finite(value)
    if result != int(result):
        raise ValueError(f"must be a whole number, found {number(value)}")
    if not 0 <= result <= 2**53:
        raise ValueError(f"must be from 0 to 2**53, found {number(value)}")
    return int(result)


def positive(value: Any) -> int:
    """A whole number of at least 1."""
    result = whole(value)
    if result == 0:
        raise ValueError("must be at least 1, found 0")
    return result


def port(value: Any) -> int:
    """A TCP port, 0 being any free one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a port number from 0 to 65535, found {what(value)}")
    if not 0 <= value <= 65535:
        raise ValueError(f"must be a port number from 0 to 65535, found {number(value)}")
    return int(value)


def version(value: Any) -> str | None:
    """A weight version, as it was written: ``042`` stays ``042``. Null means none.

    :raises ValueError: if it is not a version, or if its text is not known.
    """
    if value is None:
        return None
    if isinstance(value, WrittenInt | WrittenFloat):
        value = value.text
    if not isinstance(value, str):
        raise ValueError(f'must be a weight version, found {what(value)}; quote it, as in "7"')
    return parse_version(value)


def version_or_default(value: Any) -> str | None:
    """As :func:`version`, where ``default`` means no version, as it does on engines."""
    result = version(value)
    return None if result == UNVERSIONED else result


def policy(value: Any) -> VersionPolicy:
    """A version policy in SMG's grammar.

    :raises ValueError: if it is not in the grammar.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be text such as latest-only, found {what(value)}")
    try:
        return parse_policy(value)
    except InvalidVersionPolicy as error:
        raise ValueError(str(error)) from None


def secret(value: Any) -> SecretStr:
    """A key: visible ASCII without spaces, as it must fit into an ``Authorization`` header.

    :raises ValueError: if it is not; the message never repeats it.
    """
    if isinstance(value, WrittenInt | WrittenFloat | bool):
        raise ValueError("must be text, found a number or boolean; quote it to make it text")
    if not isinstance(value, str):
        raise ValueError(f"must be text, found {what(value)}")
    return SecretStr(checked_key(value))


def checked_key(text: str) -> str:
    """``text`` if it can be a key.

    :raises ValueError: if not; the message never repeats it.
    """
    if not text:
        raise ValueError("must not be empty")
    if any(not 0x21 <= ord(char) <= 0x7E for char in text):
        raise ValueError("must be visible ASCII without spaces (the key itself is not shown)")
    return text


def choice(options: type[Enum]) -> Callable[[Any], Any]:
    """A validator for the values of an enum of texts."""
    values = [str(option.value) for option in options]

    def check(value: Any) -> Any:
        if isinstance(value, options):
            return value
        if not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(values)}, found {what(value)}")
        if value not in values:
            raise ValueError(one_of(value, values))
        return options(value)

    return check


def word(*words: str) -> Callable[[Any], Any]:
    """A validator for one of a few words."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(words)}, found {what(value)}")
        if value not in words:
            raise ValueError(one_of(value, words))
        return value

    return check


def _finite(value: float) -> float:
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        finite = False
    if not finite:
        raise ValueError(f"must be a finite number, found {number(value)}")
    return value


Duration = Annotated[float, PlainValidator(seconds), Kind("duration")]
PositiveDuration = Annotated[float, PlainValidator(positive_seconds), Kind("duration above 0")]
Size = Annotated[int, PlainValidator(size), Kind("size")]
PositiveSize = Annotated[int, PlainValidator(positive_size), Kind("size above 0")]
Whole = Annotated[int, PlainValidator(whole), Kind("whole number")]
Positive = Annotated[int, PlainValidator(positive), Kind("whole number above 0")]
Port = Annotated[int, PlainValidator(port), Kind("port")]
Version = Annotated[str | None, PlainValidator(version), Kind("weight version")]
Label = Annotated[str | None, PlainValidator(version_or_default), Kind("weight version")]
Policy = Annotated[VersionPolicy, PlainValidator(policy), Kind("version policy")]
Secret = Annotated[SecretStr, PlainValidator(secret), Kind("text (kept out of logs)")]
