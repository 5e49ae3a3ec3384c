"""Spans of output tokens that share a version: ``[start, end)`` counted in output tokens."""

import msgspec

from steersman_sim.engine.weights import Stamp


class Span(msgspec.Struct, frozen=True):
    """Output tokens ``start`` to ``end`` (exclusive) and the version that is said to have made them.

    The field order and names are those of ``weight_versions`` in SGLang 0.5.23 and vLLM 0.32.
    """

    version: str
    start: int
    end: int


class TrueSpan(msgspec.Struct, frozen=True):
    """Output tokens and the weights that really made them."""

    version: str | None
    revision: int
    start: int
    end: int


Marks = list[tuple[int, Stamp]]
"""The output position at which each stamp began to hold, in order."""


def stamped_spans(marks: Marks, *, length: int) -> list[Span]:
    """What an engine reports: the labels, adjacent equal ones merged. They partition ``length``."""
    spans: list[Span] = []
    for position, (start, stamp) in enumerate(marks):
        end = marks[position + 1][0] if position + 1 < len(marks) else length
        if end <= start:
            continue
        if spans and spans[-1].version == stamp.label:
            spans[-1] = Span(stamp.label, spans[-1].start, end)
        else:
            spans.append(Span(stamp.label, start, end))
    return spans


def true_spans(marks: Marks, *, length: int) -> list[TrueSpan]:
    """What really happened: one span per weights in memory."""
    spans: list[TrueSpan] = []
    for position, (start, stamp) in enumerate(marks):
        end = marks[position + 1][0] if position + 1 < len(marks) else length
        if end <= start:
            continue
        made_by = stamp.weights
        if spans and (spans[-1].version, spans[-1].revision) == (
            made_by.version,
            made_by.revision,
        ):
            start = spans.pop().start
        spans.append(TrueSpan(made_by.version, made_by.revision, start, end))
    return spans
