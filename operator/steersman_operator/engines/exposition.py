"""The text that ``/metrics`` answers, as far as it is read here: names, labels, values."""

import math
import re

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples:
    """The samples of one answer."""

    def __init__(self, samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
        self._samples = samples

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all samples of a name that have these labels; ``None`` if there are none."""
        values = [
            value for found, value in self._samples.get(name, ()) if labels.items() <= found.items()
        ]
        return sum(values) if values else None


def parse(text: str) -> Samples:
    """Read an answer; lines that are none are skipped, and so are values that are no numbers."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        name, labels, written = match.groups()
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value):
            samples.setdefault(name, []).append((dict(_LABEL.findall(labels or "")), value))
    return Samples(samples)
