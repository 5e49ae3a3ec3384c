"""Sentences for what people get wrong: what is wrong, and what to write instead."""

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from steersman.documents.document import HiddenKey, WrittenFloat, WrittenInt

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_KEYS = "keys below it"
_EXPECTED = {
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "dict_type": _KEYS,
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
}


def describe(detail: "ErrorDetails", *, required: bool) -> str:
    """The sentence for one error of pydantic; never repeats a text from the file.

    Our own checks raise ValueError with a sentence, which is taken as it is.
    """
    kind, found = detail["type"], detail["input"]
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    expected = _EXPECTED.get(kind)
    if expected is None:
        return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"
    if found is None:
        return f"has no value; write {expected}{'' if required else ', or delete the key'}"
    verb = "have" if expected == _KEYS else "be"
    message = f"must {verb} {expected}, found {what(found)}"
    if expected == "text" and isinstance(found, WrittenInt | WrittenFloat | bool):
        message += "; quote it to make it text"
    return message


def what(value: object) -> str:
    """What kind of thing was written; a text is not repeated, as it may be a key or password."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return _KEYS
    return f"a {type(value).__name__}"


def unknown_key(key: str, *, known: Iterable[str], elsewhere: Iterable[str]) -> str:
    """The sentence for a key that the section does not have.

    ``elsewhere`` are the paths of the whole schema: a right key in the wrong section is common.
    A :class:`HiddenKey` is repeated only if it resembles a known one.
    """
    known = sorted(known)
    similar = _similar(key, known)
    if similar is not None:
        return f"unknown key `{key}`; did you mean `{similar}`?"
    listed = f"known here are {', '.join(known)}"
    if isinstance(key, HiddenKey):
        return f"unknown key (not shown, as it may be a secret); {listed}"
    places = [path for path in elsewhere if _fold(path.rpartition(".")[2]) == _fold(key)]
    if places:
        return f"unknown key `{key}`; did you mean `{places[0]}`?"
    return f"unknown key `{key}`; {listed}"


def _similar(key: str, known: list[str]) -> str | None:
    """The known key that was probably meant, whatever its case, dashes and underscores."""
    folded = {_fold(name): name for name in known}
    best = difflib.get_close_matches(_fold(key), folded, n=1, cutoff=0.7)
    return folded[best[0]] if best else None


def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def one_of(written: str, choices: Iterable[str]) -> str:
    """The end of a sentence that lists ``choices`` and guesses which one was meant."""
    choices = list(choices)
    near = difflib.get_close_matches(written.lower(), choices, n=1, cutoff=0.6)
    guess = f"; did you mean {near[0]}?" if near else ""
    return f"must be one of {', '.join(choices)}, found {written[:80]!a}{guess}"


def number(value: Any) -> str:
    """A number as it was written, where that is known."""
    if isinstance(value, WrittenInt | WrittenFloat):
        text = value.text
    elif isinstance(value, float) and math.isfinite(value) and value == int(value):
        text = str(int(value))
    else:
        text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
