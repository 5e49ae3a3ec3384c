"""The base of every schema, and what pydantic says of a document in our words."""

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from steersman.documents.document import HiddenKey, KeyPath, Problem
from steersman.documents.problems import describe, unknown_key


class Model(BaseModel):
    """A section of a file: keys in camelCase, unknown ones refused, types taken as written.

    Strict, because the lax conversions of pydantic make the port 1 of ``port: true``.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    holds_secrets: ClassVar[bool] = False
    """Whether a misplaced text in this section may be a key; messages then do not repeat it."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_no_keys(cls, data: Any) -> Any:
        # `auth:` with every key below it commented out is a section without keys.
        return {} if data is None else data


def problems_of(error: ValidationError, schema: type[Model]) -> list[Problem]:
    """What is wrong, without any value that may be a secret."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        path = tuple(key for key in detail["loc"] if key != "[key]")
        if detail["type"] == "extra_forbidden":
            section = model_at(schema, path[:-1])
            key = HiddenKey(path[-1]) if section.holds_secrets else str(path[-1])
            message = unknown_key(
                key, known=[name for name, _ in members(section)], elsewhere=paths_of(schema)
            )
            found.append(Problem((*path[:-1], key), message))
        elif detail["type"] == "missing":
            found.append(Problem(path[:-1], f"has no `{path[-1]}`; add the key"))
        else:
            found.append(Problem(path, describe(detail, required=_is_required(schema, path))))
    return found


def _is_required(schema: type[Model], path: KeyPath) -> bool:
    fields = model_at(schema, path[:-1]).model_fields.values()
    return any(field.alias == path[-1] and field.is_required() for field in fields)


def members(schema: type[Model]) -> Iterator[tuple[str, Any]]:
    """The keys of a section as written in files, with the type of each."""
    for name, field in schema.model_fields.items():
        yield field.alias or name, field.annotation


def model_at(schema: type[Model], path: KeyPath) -> type[Model]:
    """The section that ``path`` leads to, or the last one on the way."""
    section = schema
    kind: Any = schema
    for key in path:
        inner = element_of(kind)
        if inner is not None:
            kind = inner
        elif (found := section_of(kind)) is not None:
            kind = dict(members(found)).get(str(key))
        section = section_of(kind) or section
    return section


def section_of(kind: Any) -> type[Model] | None:
    """The model that a type annotation means, if it means one."""
    kind = without_none(kind)
    return kind if isinstance(kind, type) and issubclass(kind, Model) else None


def element_of(kind: Any) -> Any:
    """The type of the members of a ``dict`` or the items of a ``list`` or ``tuple``, else None."""
    kind = without_none(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    if isinstance(origin, type) and issubclass(origin, list | tuple):
        return arguments[0]
    return None


def paths_of(schema: type[Model], *, prefix: str = "") -> Iterator[str]:
    """Every key of the schema with its path, such as ``listen.port`` or ``pools[].engines``."""
    for key, kind in members(schema):
        yield f"{prefix}{key}"
        inner, mark = element_of(kind), ""
        if inner is not None:
            mark = ".NAME" if is_mapping(kind) else "[]"
        section = section_of(kind if inner is None else inner)
        if section is not None:
            yield from paths_of(section, prefix=f"{prefix}{key}{mark}.")


def is_mapping(kind: Any) -> bool:
    """Whether a type annotation means keys that the writer chooses."""
    origin = get_origin(without_none(kind))
    return isinstance(origin, type) and issubclass(origin, Mapping)


def without_none(kind: Any) -> Any:
    """``X`` for ``X | None``, anything else as it is."""
    if get_origin(kind) in (Union, UnionType):
        rest = [argument for argument in get_args(kind) if argument is not NoneType]
        return rest[0] if len(rest) == 1 else kind
    return kind
