"""Values of an engine's and a pool's entry, the same in a table file and in a RolloutEngine."""

from typing import Annotated, Any

from pydantic import PlainValidator

from steersman.documents.problems import what
from steersman.documents.urls import engine_url
from steersman.documents.values import Kind, choice, version
from steersman.engine import Role, Runtime
from steersman.versions import UNVERSIONED


def printable(value: Any) -> str:
    """A text of one line that people and logs can show.

    :raises ValueError: if it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be text, found {what(value)}; quote it to make it text")
    if not value or len(value) > 512 or not value.isprintable() or value != value.strip():
        raise ValueError(f"must be 1 to 512 printable characters, found {value[:80]!a}")
    return value


def named_version(value: Any) -> str | None:
    """A weight version that is one.

    :raises ValueError: also for ``default``, which means none.
    """
    text = version(value)
    if text == UNVERSIONED:
        raise ValueError(f"cannot be `{UNVERSIONED}`, which engines say before they have a version")
    return text


def unique(names: list[str]) -> list[str]:
    """``names``, if each is there once.

    :raises ValueError: if not.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"has {name!a} twice; keep one of them")
        seen.add(name)
    return names


Text = Annotated[str, PlainValidator(printable), Kind("text")]
EngineUrl = Annotated[str, PlainValidator(engine_url), Kind("URL `http[s]://host[:port]`")]
VersionName = Annotated[str, PlainValidator(named_version), Kind("weight version")]
RoleName = Annotated[Role, PlainValidator(choice(Role)), Kind("`plain`, `prefill`, `decode`")]
RuntimeName = Annotated[
    Runtime, PlainValidator(choice(Runtime)), Kind("`sglang`, `vllm`, `unknown`")
]
