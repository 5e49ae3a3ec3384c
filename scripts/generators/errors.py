"""``docs/errors.md``: the error tree with codes, statuses and remedies.

The page can be complete because every error that a person meets is a class of one tree, whose root is
in :mod:`steersman.errors`, and carries what to do about it.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping

import steersman_operator
from steersman import errors

INTRODUCTION = """\
# Errors

Every error that Steersman answers or prints, made from the classes of `steersman.errors` and those that
the operator and its commands add.

An answered error has the body `{"error": {"type", "code", "message", "param"}}` and the header
`x-smg-error-code`. Act on the code; the message is for people and may change. Errors of an engine
are passed on as the engine wrote them.
"""


def pages() -> Mapping[str, str]:
    """The one page."""
    for module in pkgutil.walk_packages(steersman_operator.__path__, "steersman_operator."):
        importlib.import_module(module.name)
    tree = list(_descendants(errors.SteersmanError))
    edits = [kind for kind in tree if issubclass(kind, errors.EditError)]
    answered = [
        kind for kind in tree if issubclass(kind, errors.RequestError) and kind not in edits
    ]
    printed = [kind for kind in tree if not issubclass(kind, errors.RequestError)]
    parts = [
        INTRODUCTION,
        "## Answered by the proxy\n",
        "| Status | Code | What happened | What to do | `Retry-After` |\n|---|---|---|---|---|",
        *(_answered_row(kind) for kind in sorted(answered, key=lambda kind: kind.status)),
        "\n## Answered by the operator\n",
        "To `steersman pause`, `resume`, `sleep`, `wake`, `refit`, `publish` and `rollout`, which print it.\n",
        "| Status | Code | What happened | What to do | `Retry-After` |\n|---|---|---|---|---|",
        *(_answered_row(kind) for kind in sorted(edits, key=lambda kind: kind.status)),
        "\n## Printed by the programs\n",
        "| Code | What happened | What to do |\n|---|---|---|",
        *(f"| `{kind.code}` | {_meaning(kind)} | {_cell(kind.remedy)} |" for kind in printed),
    ]
    return {"errors.md": "\n".join(parts)}


def _descendants(root: type[errors.SteersmanError]) -> Iterator[type[errors.SteersmanError]]:
    """Classes with a code of their own, children after parents: those of `steersman.errors` in the
    order of their definition, then others by code.

    Classes without one are only branches of the tree.
    """
    for kind in sorted(root.__subclasses__(), key=_place):
        if kind.__module__.startswith(("steersman.", "steersman_operator.")):
            if "code" in vars(kind):
                yield kind
            yield from _descendants(kind)


def _place(kind: type[errors.SteersmanError]) -> tuple[bool, str]:
    # Sorting is stable, and the classes of one module come in the order of their definition.
    shared = kind.__module__ == errors.__name__
    return not shared, "" if shared else kind.code


def _answered_row(kind: type[errors.RequestError]) -> str:
    wait = f"{kind.retry_after:g} s" if kind.retry_after is not None else ""
    return f"| {kind.status} | `{kind.code}` | {_meaning(kind)} | {_cell(kind.remedy)} | {wait} |"


def _meaning(kind: type[errors.SteersmanError]) -> str:
    """The first paragraph of the class's docstring, with reST's double backquotes made single."""
    first = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
    return _cell(re.sub(r"``(.+?)``", r"`\1`", first))


def _cell(text: str) -> str:
    """One line that is safe in a table; ``<`` is HTML only outside code spans."""
    spans = " ".join(text.split()).replace("|", "\\|").split("`")
    spans[::2] = [span.replace("<", "&lt;") for span in spans[::2]]
    return "`".join(spans)
