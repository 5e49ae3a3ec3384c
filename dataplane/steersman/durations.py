"""Durations as people write them: ``500ms``, ``30s``, ``1h30m``."""

import re

EXAMPLES = "500ms, 30s, 10m or 1h"

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float | None:
    """The seconds that ``text`` means; ``None`` if it is not a duration with a unit."""
    if not _WHOLE.fullmatch(text):
        return None
    return float(sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(text)))
