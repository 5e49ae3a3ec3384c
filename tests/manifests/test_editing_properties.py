"""Whatever the layout: an edit does what is asked, and leaves the rest of the text alone."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from steersman.documents import parse_documents
from steersman.errors import DocumentError, EditImpossible
from steersman_operator.manifests.changes import (
    Change,
    DropOverride,
    SetOverride,
    SetState,
    SetValue,
)
from steersman_operator.manifests.editing import edited
from steersman_operator.resources import State, read_resources
from tests.manifests.layouts import NAMES, Layout, json_layouts, yaml_layouts


def changes(spec: dict[str, Any]) -> st.SearchStrategy[Change]:
    """Every change that can be asked of a spec."""
    states = st.sampled_from(State)
    names = [override["engine"] for override in spec.get("overrides", ())]
    kinds: list[st.SearchStrategy[Change]] = [
        st.builds(SetState, states),
        st.builds(SetOverride, st.sampled_from(NAMES), states),
        st.builds(
            SetValue,
            st.just(("weightVersionRef", "name")),
            st.sampled_from(["q-8", "7", "no"]),
        ),
        st.builds(SetValue, st.just(("refitNonce",)), st.sampled_from(["1", 'it\'s # "so"'])),
        st.builds(SetValue, st.just(("rollout", "paused")), st.booleans()),
    ]
    if names:
        kinds.append(st.builds(DropOverride, st.sampled_from(names)))
        kinds.append(st.builds(DropOverride, st.sampled_from(names)))
    return st.one_of(kinds)


def wanted(spec: dict[str, Any], change: Change) -> dict[str, Any]:
    """The spec after the change."""
    spec = json.loads(json.dumps(spec))
    entries = {item["engine"]: item["state"] for item in spec.get("overrides", ())}
    match change:
        case SetState(state):
            return spec | {"state": state.value}
        case SetOverride(engine, state):
            entries[engine] = state.value
        case SetValue():
            (key,) = change.content
            value: Any = change.content[key]
            section = spec.get(key)
            return spec | {key: section | value if isinstance(section, dict) else value}
        case DropOverride(engine):
            del entries[engine]
    spec["overrides"] = [{"engine": name, "state": state} for name, state in entries.items()]
    if not entries:
        del spec["overrides"]
    return spec


def difference(before: str, after: str) -> tuple[str, str]:
    """What went and what came, where everything around it is the same."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    shortest = min(len(before), len(after)) - start
    while end < shortest and before[-1 - end] == after[-1 - end]:
        end += 1
    return before[start : len(before) - end], after[start : len(after) - end]


def check(layout: Layout, change: Change) -> None:
    content = layout.text.encode()
    result = edited(layout.file, content, document=layout.document, changes=[change])
    text = result.decode()

    before = [found.data for found in parse_documents(layout.file, content)]
    after = [found.data for found in parse_documents(layout.file, result)]
    spec = layout.data["spec"]
    assert before[layout.document]["spec"] == spec
    assert after[layout.document]["spec"] == wanted(spec, change)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert number == layout.document or old == new
    if layout.file.endswith(".json"):
        assert json.loads(text)["spec"] == wanted(spec, change)

    went, came = difference(layout.text, text)
    names = [item["engine"] for item in spec.get("overrides", ())]
    match change:
        case SetState() if "state" in spec:
            assert len(went) <= len("Active") and len(came) <= len("Active")
            kept = layout.comments
        case SetOverride(engine, _) if engine in names:
            assert len(went) <= len("Active") and len(came) <= len("Active")
            kept = layout.comments
        case SetValue(path, _) if (
            path[0] in spec and path[-1] in (spec, spec[path[0]])[len(path) - 1]
        ):
            assert len(went) <= len("2026-01-02") and "\n" not in went + came
            kept = layout.comments
        case SetState() | SetOverride() | SetValue():
            assert went == ""
            kept = layout.comments
        case DropOverride(engine):
            gone = layout.inside_key if len(names) == 1 else layout.inside.get(engine, [])
            kept = [mark for mark in layout.comments if mark not in gone]
    assert [mark for mark in layout.comments if mark in text and mark in kept] == kept
    # Line ends are those of the file, and there is one at its end if there was.
    assert text.endswith(("\n", "\r")) == layout.text.endswith(("\n", "\r"))
    if "\r\n" in layout.text:
        assert "\n" not in text.replace("\r\n", "")
    elif "\n" in layout.text:
        assert "\r" not in text


@given(st.data())
def test_yaml_of_any_layout(data: st.DataObject) -> None:
    layout = data.draw(yaml_layouts())
    check(layout, data.draw(changes(layout.data["spec"])))


@given(st.data())
def test_json_of_any_layout(data: st.DataObject) -> None:
    layout = data.draw(json_layouts())
    check(layout, data.draw(changes(layout.data["spec"])))


@given(st.data())
def test_edits_one_after_the_other_come_back_to_where_they_began(data: st.DataObject) -> None:
    """Adding an override and removing it again leaves the text as it was."""
    layout = data.draw(yaml_layouts())
    spec = layout.data["spec"]
    names = [item["engine"] for item in spec.get("overrides", ())]
    engine = data.draw(st.sampled_from([name for name in NAMES if name not in names] or ["new"]))
    content = layout.text.encode()
    added = edited(
        layout.file,
        content,
        document=layout.document,
        changes=[SetOverride(engine, data.draw(st.sampled_from(State)))],
    )
    removed = edited(layout.file, added, document=layout.document, changes=[DropOverride(engine)])
    if names or "overrides" not in spec:
        assert removed == content


MUTATIONS = ["&x ", "*x", "!!str ", "? ", "# ", ",", "\n", "  ", "'", '"', "|-\n", "[", "{", "- ", "\t", ""]  # fmt: skip


@given(st.data())
def test_a_text_that_was_damaged_is_changed_right_or_refused(data: st.DataObject) -> None:
    """Odd texts that are good by chance: no other error, and never another value."""
    layout = data.draw(yaml_layouts())
    text = layout.text
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 2))
        text = text[:at] + data.draw(st.sampled_from(MUTATIONS)) + text[at + gone :]
    content = text.encode()
    try:
        documents = parse_documents("f.yaml", content)
    except DocumentError:
        return
    position = next(
        (at for at, found in enumerate(documents) if found.data.get("kind") == "RolloutEngine"),
        None,
    )
    if position is None or read_resources(documents[position : position + 1], base=Path()).problems:
        return
    spec = documents[position].data["spec"]
    change = data.draw(changes(spec))
    try:
        result = edited("f.yaml", content, document=position, changes=[change])
    except EditImpossible:
        return
    after = [found.data for found in parse_documents("f.yaml", result)]
    assert after[position]["spec"] == wanted(spec, change)
    assert after[:position] == [found.data for found in documents[:position]]
