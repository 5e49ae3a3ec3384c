"""The text that ``/metrics`` answers, as far as it is read here: names, labels, values."""

import math
import re

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+\S+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples:
    """The samples of one answer.

    An engine tells hundreds of series, of which a handful is asked for at each look: so only the
    lines of a name that is asked for are read. Lines that are no samples are skipped, and so are
    values that are no numbers.
    """

    def __init__(self, text: str) -> None:
        self._text = "\n" + text
        self._known: dict[str, list[tuple[dict[str, str], float]]] = {}

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all samples of a name that have these labels; ``None`` if there are none."""
        samples = self._known.get(name)
        if samples is None:
            samples = self._known[name] = self._read(name)
        values = [value for found, value in samples if labels.items() <= found.items()]
        return sum(values) if values else None

    def _read(self, name: str) -> list[tuple[dict[str, str], float]]:
        samples: list[tuple[dict[str, str], float]] = []
        text, begins = self._text, "\n" + name
        at = text.find(begins)
        while at >= 0:
            end = text.find("\n", at + 1)
            line = text[at + 1 :] if end < 0 else text[at + 1 : end]
            match = _LINE.match(line)
            # Other names begin like this one.
            if match is not None and match[1] == name and (value := _number(match[3])) is not None:
                samples.append((dict(_LABEL.findall(match[2] or "")), value))
            at = -1 if end < 0 else text.find(begins, end)
        return samples


def parse(text: str) -> Samples:
    """Read an answer."""
    return Samples(text)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
