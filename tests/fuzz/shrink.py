"""Makes a failing example small, by trying what can be left out.

Hypothesis does that for its own examples; this is for those of a seed.
"""

import time
from collections.abc import Callable, Iterator

from tests.fuzz.example import Answer, Example

SECONDS = 20.0


def shrink(
    example: Example, fails: Callable[[Example], bool], *, seconds: float = SECONDS
) -> Example:
    """A smaller example that still fails; the best that was found in so many seconds."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(example):
            if time.monotonic() > deadline:
                return example
            if smaller != example and fails(smaller):
                example, progress = smaller, True
                break
    return example


def _smaller(example: Example) -> Iterator[Example]:
    yield example.whole()
    yield example._replace(answers=())
    yield example._replace(leave="fin")
    yield example._replace(setup="rl")
    yield example._replace(gap=3)
    yield example._replace(take=0)
    for index in range(len(example.answers)):
        yield example._replace(answers=example.answers[:index] + example.answers[index + 1 :])
    for pieces in _pieces(example.client):
        if any(pieces):
            yield example._replace(client=tuple(filter(None, pieces)))
    for index, answer in enumerate(example.answers):
        for smaller in _answers(answer):
            answers = (*example.answers[:index], smaller, *example.answers[index + 1 :])
            yield example._replace(answers=answers)


def _answers(answer: Answer) -> Iterator[Answer]:
    if answer.end != "keep":
        yield answer._replace(end="keep")
    if answer.end == "rst":
        yield answer._replace(end="fin")
    for pieces in _pieces(answer.pieces):
        yield answer._replace(pieces=pieces)


def _pieces(pieces: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    """One cut less; then a line less; then less of one piece."""
    for index in range(len(pieces) - 1):
        yield (*pieces[:index], pieces[index] + pieces[index + 1], *pieces[index + 2 :])
    for index, piece in enumerate(pieces):
        before, after = pieces[:index], pieces[index + 1 :]
        lines = piece.splitlines(keepends=True)
        for number in range(len(lines)):
            yield (*before, b"".join(lines[:number] + lines[number + 1 :]), *after)
        size = len(piece) // 2
        while size:
            for start in range(0, len(piece), size) if len(piece) // size < 2000 else ():
                yield (*before, piece[:start] + piece[start + size :], *after)
            size //= 2
