"""Weight versions: which texts are versions, and which of two is newer.

A version is an opaque text chosen by the trainer. The rules of validity and of order are those of
SMG's RL contract, so that a fleet moved here orders its versions as before: texts of digits are
compared as 64-bit numbers (``10`` is newer than ``9``, ``042`` equals ``42``), other texts by their
bytes. Engines say ``default`` until somebody labels them; as a label that means *unversioned*.

Where a pool's versions carry explicit ordinals (WeightVersion resources), ordinals alone decide.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

import msgspec

from steersman.errors import InvalidVersion

MAX_VERSION_BYTES = 128
UNVERSIONED = "default"
"""What SGLang and vLLM report before anybody has named their weights."""

_U64_MAX = 2**64 - 1
_VISIBLE = frozenset(chr(code) for code in range(0x21, 0x7F))
_DIGITS = frozenset("0123456789")


def parse_version(text: str) -> str:
    """Return ``text`` trimmed, if it is a version: 1 to 128 bytes, all visible ASCII.

    :raises InvalidVersion: if it is empty, too long, or has a space, control or non-ASCII character
        inside.
    """
    version = text.strip()
    if not version:
        raise InvalidVersion("a weight version must not be empty")
    strange = next((char for char in version if char not in _VISIBLE), None)
    if strange is not None:
        raise InvalidVersion(
            f"a weight version must be visible ASCII without spaces, found {strange!r} "
            f"in {version[:MAX_VERSION_BYTES]!r}"
        )
    if len(version) > MAX_VERSION_BYTES:
        raise InvalidVersion(f"weight_version exceeds {MAX_VERSION_BYTES} bytes")
    return version


def version_of_label(label: str | None) -> str | None:
    """The version that an engine's label or report names; ``None`` means unversioned.

    :raises InvalidVersion: if the label is neither empty, ``default`` nor a version.
    """
    if label is None or not label.strip() or label.strip() == UNVERSIONED:
        return None
    return parse_version(label)


def reported_version(value: object) -> str | None:
    """The version in an engine's answer, or ``None`` for anything that is not a valid version.

    Engines report texts, but a number is taken too (SMG does). Never raises: an engine's odd report
    must not fail the request that carried it.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return _version_or_none(text) if len(text) <= MAX_VERSION_BYTES else _lenient(text)


# Every answer names a version, and a fleet has a few of them at a time.
@lru_cache(maxsize=1024)
def _version_or_none(text: str) -> str | None:
    return _lenient(text)


def _lenient(text: str) -> str | None:
    try:
        return version_of_label(text)
    except InvalidVersion:
        return None


@lru_cache(maxsize=1024)
def numeric(version: str) -> int | None:
    """The value of a version that is an unsigned 64-bit number in digits, else ``None``."""
    if len(version) > MAX_VERSION_BYTES or not _DIGITS.issuperset(version):
        return None
    value = int(version)
    return value if value <= _U64_MAX else None


class Order(IntEnum):
    """The outcome of a comparison."""

    OLDER = -1
    SAME = 0
    NEWER = 1


class VersionOrder(msgspec.Struct, frozen=True):
    """How the versions of one pool are ordered.

    ``ordinals`` maps a version to its explicit rank; if it is not empty, versions without an entry
    are older than every version with one, and the same as each other only if their texts are.
    """

    ordinals: dict[str, int] = {}

    def compare(self, left: str, right: str) -> Order:
        """Whether ``left`` is older than, the same as, or newer than ``right``."""
        if left == right:
            return Order.SAME
        if self.ordinals:
            return _order(
                (self.ordinals.get(left, -1), "" if left in self.ordinals else left),
                (self.ordinals.get(right, -1), "" if right in self.ordinals else right),
            )
        left_value, right_value = numeric(left), numeric(right)
        if left_value is not None and right_value is not None:
            return _order(left_value, right_value)
        return _order(left, right)

    def newest(self, versions: Iterable[str]) -> str | None:
        """The fleet max of ``versions``; ``None`` if there are none.

        If any is numeric, only the numeric ones count, so that a stray ``ckpt-7`` cannot outrank
        ``10`` (SMG's rule).
        """
        candidates = set(versions)
        if self.ordinals:
            return max(
                candidates, key=lambda text: (self.ordinals.get(text, -1), text), default=None
            )
        values = {text: value for text in candidates if (value := numeric(text)) is not None}
        if values:
            # Equal values may have several spellings (42, 042); the choice must not depend on the
            # order in which they came.
            return max(values, key=lambda text: (values[text], text))
        return max(candidates, default=None)

    def staleness(self, version: str, newest: str) -> int | None:
        """How many steps ``version`` is behind ``newest``, never negative.

        ``None`` where steps cannot be counted: a text on either side (or, with ordinals, a version
        without one).
        """
        if self.ordinals:
            behind, ahead = self.ordinals.get(version), self.ordinals.get(newest)
        else:
            behind, ahead = numeric(version), numeric(newest)
        if behind is None or ahead is None:
            return None
        return max(0, ahead - behind)


def _order(left: int | str | tuple[int, str], right: int | str | tuple[int, str]) -> Order:
    """Compare two keys of the same kind."""
    if left == right:
        return Order.SAME
    return Order.OLDER if left < right else Order.NEWER  # type: ignore[operator]
