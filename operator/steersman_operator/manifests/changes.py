"""The changes of a RolloutEngine's spec that commands make in its file."""

import msgspec

from steersman_operator.resources import State


class SetState(msgspec.Struct, frozen=True):
    """``spec.state``."""

    state: State


class SetOverride(msgspec.Struct, frozen=True):
    """The state of one engine in ``spec.overrides``, which may have to be added."""

    engine: str
    state: State


class DropOverride(msgspec.Struct, frozen=True):
    """The entry of one engine in ``spec.overrides`` goes."""

    engine: str


class SetValue(msgspec.Struct, frozen=True):
    """A single value at the keys ``path`` below ``spec``; those that are missing are added."""

    path: tuple[str, ...]
    value: str | bool

    @property
    def content(self) -> dict[str, object]:
        """The value below its keys, as plain data."""
        content: object = self.value
        for key in reversed(self.path):
            content = {key: content}
        assert isinstance(content, dict)
        return content


Change = SetState | SetOverride | DropOverride | SetValue
