"""Random layouts of one RolloutEngine: the same content as people of all habits would write it."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b-1", "10.0.0.1:80", "[::1]:90", "no"]
STATES = ["Active", "Paused", "Asleep"]


@dataclass
class Layout:
    """A text, what it says, and which comments belong to which override."""

    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    document: int = 0
    file: str = "f.yaml"
    inside: dict[str, list[str]] = field(default_factory=dict)
    """Comments within the entry of an engine; they go with it."""
    inside_key: list[str] = field(default_factory=list)
    """Comments between ``overrides`` and its entries; they go with the key."""
    comments: list[str] = field(default_factory=list)


class _Writer:
    """Writes values in the styles that it draws."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.layout = Layout()
        self.break_ = draw(st.sampled_from(["\n", "\r\n"]))
        self.scope: list[list[str]] = []

    def coin(self) -> bool:
        return self.draw(st.booleans())

    def comment(self) -> str:
        mark = f"#c{len(self.layout.comments)}."
        self.layout.comments.append(mark)
        for scope in self.scope:
            scope.append(mark)
        return mark

    def word(self, text: str, *, bare: bool = True) -> str:
        """A text with quotes or without."""
        style = self.draw(st.sampled_from(["", "'", '"'] if bare else ["'", '"']))
        return f"{style}{text}{style}"

    def tail(self) -> str:
        """What may stand behind a value in its line."""
        kind = self.draw(st.integers(0, 4))
        if kind == 0:
            return "   " + self.comment()
        return "  " if kind == 1 else ""

    def between(self, indent: int) -> list[str]:
        """Lines that may stand between two others."""
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            return [" " * self.draw(st.integers(0, indent)) + self.comment()]
        return [""] if kind == 1 else []

    def name(self, name: str) -> str:
        return self.word(name, bare=name[0].isalpha() and name != "no")

    def flow(self, value: Any, *, lines: int = -1) -> str:
        """A value between brackets; with ``lines`` each member has one, so far from the left."""
        pad = self.draw(st.sampled_from(["", " "]))
        if isinstance(value, dict):
            inner = [f"{key}: {self.flow(member)}" for key, member in value.items()]
        elif isinstance(value, list):
            inner = [self.flow(item) for item in value]
        elif isinstance(value, str):
            return self.name(value)
        else:
            return json.dumps(value)
        brackets = "{}" if isinstance(value, dict) else "[]"
        comma = "," if inner and self.draw(st.integers(0, 4)) == 0 else ""
        if lines < 0 or not inner:
            body = f",{pad or ' '}".join(inner)
            return f"{brackets[0]}{pad}{body}{comma}{pad}{brackets[1]}"
        lead = self.break_ + " " * (lines + 1)
        body = "".join(
            f"{lead}{member}{',' if member is not inner[-1] else comma}{self.tail()}"
            for member in inner
        )
        return f"{brackets[0]}{body}{self.break_}{' ' * lines}{brackets[1]}"

    def entry(self, override: dict[str, str], indent: int) -> list[str]:
        """The lines of one override in a block."""
        inside: list[str] = []
        self.layout.inside[override["engine"]] = inside
        before = self.between(indent)
        self.scope.append(inside)
        dash = " " * indent + "-" + " " * self.draw(st.integers(1, 3))
        if self.draw(st.integers(0, 2)) == 0:
            lines = [f"{dash}{self.flow(self.shuffled(override))}{self.tail()}"]
        else:
            lines = []
            for key, value in self.shuffled(override).items():
                if lines:
                    lines += self.between(len(dash))
                lead = " " * len(dash) if lines else dash
                lines.append(f"{lead}{key}: {self.name(value)}{self.tail()}")
        self.scope.pop()
        return before + lines

    def shuffled(self, value: dict[str, Any]) -> dict[str, Any]:
        return {key: value[key] for key in self.draw(st.permutations(list(value)))}

    def block(self, spec: dict[str, Any], indent: int) -> list[str]:
        """The members of the spec in a block."""
        lines: list[str] = []
        lead = " " * indent
        for key, value in spec.items():
            lines += self.between(indent)
            if key == "overrides" and value and self.coin():
                self.scope.append(self.layout.inside_key)
                lines.append(f"{lead}{key}:{self.tail()}")
                step = self.draw(st.integers(0, 3))
                for override in value:
                    lines += self.entry(override, indent + step)
                self.scope.pop()
            elif isinstance(value, str):
                lines.append(f"{lead}{key}: {self.name(value)}{self.tail()}")
            elif isinstance(value, dict) and value and self.coin():
                lines.append(f"{lead}{key}:{self.tail()}")
                lines += self.block(value, indent + self.draw(st.integers(1, 4)))
            else:
                self.scope.append(self.layout.inside_key if key == "overrides" else [])
                flow = self.flow(value, lines=self.draw(st.sampled_from([-1, indent])))
                lines.append(f"{lead}{key}: {flow}{self.tail()}")
                self.scope.pop()
        return lines


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """The content of a spec, its keys in any order."""
    engines = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    spec: dict[str, Any] = {
        "model": draw(st.sampled_from(["q", "Qwen/Qwen3-8B", "true-ish"])),
        "endpoints": {
            "static": [
                {"name": name, "url": f"http://h:{port}"} for port, name in enumerate(engines, 1)
            ]
        },
    }
    if draw(st.booleans()):
        spec["state"] = draw(st.sampled_from(STATES))
    if draw(st.booleans()):
        spec["default"] = draw(st.booleans())
    if draw(st.booleans()):
        spec["weightVersionRef"] = {"name": draw(st.sampled_from(["q-7", "no"]))}
    if draw(st.integers(0, 2)) == 0:
        spec["refitNonce"] = draw(st.sampled_from(["one", "no"]))
    if draw(st.booleans()):
        rollout = {"mode": "InPlace", "paused": draw(st.booleans())}
        keys = draw(st.lists(st.sampled_from(list(rollout)), unique=True))
        spec["rollout"] = {key: rollout[key] for key in keys}
    overrides = draw(st.lists(st.sampled_from(engines), unique=True))
    if overrides or draw(st.integers(0, 4)) == 0:
        spec["overrides"] = [
            {"engine": name, "state": draw(st.sampled_from(STATES))} for name in overrides
        ]
    return {key: spec[key] for key in draw(st.permutations(list(spec)))}


def _resource(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "rollout.steersman.io/v1alpha1",
        "kind": "RolloutEngine",
        "metadata": {"name": "q"},
        "spec": spec,
    }


@st.composite
def yaml_layouts(draw: st.DrawFn) -> Layout:
    """A YAML file with the resource in it, perhaps among others."""
    writer = _Writer(draw)
    layout = writer.layout
    layout.data = _resource(draw(specs()))
    lines: list[str] = []
    others = draw(st.integers(0, 2))
    for number in range(others):
        lines += ["kind: Other", f"number: {number}", "spec: {model: q, state: Active}"]
        lines += writer.between(2)
        lines.append("---")
    layout.document = others
    lines += writer.between(0)
    order = draw(st.permutations(list(layout.data)))
    for key in order:
        value = layout.data[key]
        if key != "spec":
            text = writer.flow(value) if isinstance(value, dict) else value
            lines.append(f"{key}: {text}{writer.tail()}")
        elif draw(st.integers(0, 2)) == 0:
            flow = writer.flow(value, lines=draw(st.sampled_from([-1, 0, 3])))
            lines.append(f"spec: {flow}{writer.tail()}")
        else:
            lines.append(f"spec:{writer.tail()}")
            lines += writer.block(value, draw(st.integers(1, 6)))
        lines += writer.between(0)
    if draw(st.booleans()):
        lines += ["---", "kind: Other", "spec: {overrides: []}"]
    layout.text = writer.break_.join(lines)
    layout.text += writer.break_ if draw(st.booleans()) else ""
    layout.text = ("\ufeff" if draw(st.integers(0, 4)) == 0 else "") + layout.text
    return layout


@st.composite
def json_layouts(draw: st.DrawFn) -> Layout:
    """A JSON file with the resource in it."""
    data = _resource(draw(specs()))
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]))
    text = json.dumps(data, indent=indent, separators=separators) + draw(
        st.sampled_from(["", "\n"])
    )
    text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    return Layout(text=text, data=data, file="f.json")
