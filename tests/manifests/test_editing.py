"""Edits in place: what a file looks like before and after."""

import pytest

from steersman.errors import EditImpossible
from steersman_operator.manifests.changes import (
    Change,
    DropOverride,
    SetOverride,
    SetState,
    SetValue,
)
from steersman_operator.manifests.editing import edited
from steersman_operator.resources import State

PAUSE = SetState(State.PAUSED)
HEAD = "apiVersion: rollout.steersman.io/v1alpha1\nkind: RolloutEngine\nmetadata: {name: q}\n"


def change(text: str, wish: Change, *, file: str = "f.yaml", document: int = 0) -> str:
    content = edited(file, text.encode("utf-8"), document=document, changes=[wish])
    return content.decode("utf-8")


def override(engine: str, state: State = State.PAUSED) -> SetOverride:
    return SetOverride(engine, state)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("spec:\n  model: q\n  state: Active # now\n", "spec:\n  model: q\n  state: Paused # now\n"),
        ("spec:\n  state: 'Active'\n  model: q\n", "spec:\n  state: 'Paused'\n  model: q\n"),
        ('spec:\n  state: "Active"\n  model: q', 'spec:\n  state: "Paused"\n  model: q'),
        ("spec:\n  state: &s Active\n  model: q", "spec:\n  state: &s Paused\n  model: q"),
        ("spec: {model: q, state: Active}\n", "spec: {model: q, state: Paused}\n"),
        ("spec: {state: Active,model: q}", "spec: {state: Paused,model: q}"),
        # Without a state: behind the model.
        (
            "spec:\n  model: q   # a model\n  # more\n  default: true\n",
            "spec:\n  model: q   # a model\n  state: Paused\n  # more\n  default: true\n",
        ),
        ("spec:\n    default: true\n    model: q", "spec:\n    default: true\n    model: q\n    state: Paused"),
        ("spec:\r\n  model: q\r\n  default: true\r\n", "spec:\r\n  model: q\r\n  state: Paused\r\n  default: true\r\n"),
        ("spec:\r\n  model: q", "spec:\r\n  model: q\r\n  state: Paused"),
        ("spec:\n  model: |-\n    q\n  default: true\n", "spec:\n  model: |-\n    q\n  state: Paused\n  default: true\n"),
        ("spec:\n  model: 'long\n    name' # x\n", "spec:\n  model: 'long\n    name' # x\n  state: Paused\n"),
        ("spec: {model: q}\n", "spec: {model: q, state: Paused}\n"),
        ("spec: { model: q, default: true } # c\n", "spec: { model: q, state: Paused, default: true } # c\n"),
        (
            "spec: {\n  model: q, # it\n  default: true\n}\n",
            "spec: {\n  model: q, # it\n  state: Paused,\n  default: true\n}\n",
        ),
        ("spec: {\n  model: q # it\n}\n", "spec: {\n  model: q, state: Paused # it\n}\n"),
        ("spec: {\n  model: q\n}\n", "spec: {\n  model: q,\n  state: Paused\n}\n"),
    ],
)  # fmt: skip
def test_a_state_is_written(before: str, after: str) -> None:
    assert change(HEAD + before, PAUSE) == HEAD + after


def test_a_byte_order_mark_stays() -> None:
    assert change("\ufeff" + HEAD + "spec:\n  model: q\n", PAUSE) == (
        "\ufeff" + HEAD + "spec:\n  model: q\n  state: Paused\n"
    )


def test_only_the_document_that_is_meant_changes() -> None:
    text = f"# top\n---\n{HEAD}spec: {{model: q}}\n---\n# nothing\n---\n{HEAD}spec: {{model: r}}\n"
    assert change(text, PAUSE, document=1) == text.replace("model: r", "model: r, state: Paused")


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        (
            '{"kind": "RolloutEngine", "spec": {"model": "q"}}',
            PAUSE,
            '{"kind": "RolloutEngine", "spec": {"model": "q", "state": "Paused"}}',
        ),
        (
            '{\n\t"spec": {\n\t\t"model": "q",\n\t\t"default": true\n\t}\n}\n',
            PAUSE,
            '{\n\t"spec": {\n\t\t"model": "q",\n\t\t"state": "Paused",\n\t\t"default": true\n\t}\n}\n',
        ),
        (
            '{\r\n  "spec": {\r\n    "model": "q"\r\n  }\r\n}',
            override("a"),
            (
                '{\r\n  "spec": {\r\n    "model": "q",\r\n    "overrides": '
                '[{"engine": "a", "state": "Paused"}]\r\n  }\r\n}'
            ),
        ),
        (
            '{"spec": {"model":"q","overrides":[{"engine":"a","state":"Paused"}]}}',
            DropOverride("a"),
            '{"spec": {"model":"q"}}',
        ),
        (
            '{"spec": {"overrides":[{"engine":"a","state":"Paused"}],"model":"q"}}',
            DropOverride("a"),
            '{"spec": {"model":"q"}}',
        ),
        (
            (
                '{"spec": {\n "model": "q",\n "overrides": [\n  {\n   "engine": "a",\n   "state": '
                '"Paused"\n  }\n ]\n}}'
            ),
            override("b", State.ASLEEP),
            (
                '{"spec": {\n "model": "q",\n "overrides": [\n  {\n   "engine": "a",\n   "state": '
                '"Paused"\n  },\n  {"engine": "b", "state": "Asleep"}\n ]\n}}'
            ),
        ),
    ],
)
def test_json_stays_json(before: str, wish: Change, after: str) -> None:
    assert change(before, wish, file="f.json") == after


OVERRIDES = """\
spec:
  model: q
  overrides:
    # first
    - engine: a   # the old one
      state: Paused
    # second
    - state: 'Asleep'   # by hand
      engine: b

    - {engine: c, state: Active}
  # below
  default: true
"""


@pytest.mark.parametrize(
    ("wish", "old", "new"),
    [
        (override("a", State.ASLEEP), "state: Paused\n", "state: Asleep\n"),
        (override("b", State.PAUSED), "'Asleep'", "'Paused'"),
        (override("c", State.PAUSED), "state: Active}", "state: Paused}"),
        (
            override("d"),
            "    - {engine: c, state: Active}\n",
            "    - {engine: c, state: Active}\n    - {engine: d, state: Paused}\n",
        ),
        (DropOverride("a"), "    - engine: a   # the old one\n      state: Paused\n", ""),
        (DropOverride("b"), "    - state: 'Asleep'   # by hand\n      engine: b\n", ""),
        (DropOverride("c"), "    - {engine: c, state: Active}\n", ""),
        (PAUSE, "  model: q\n", "  model: q\n  state: Paused\n"),
    ],
)
def test_overrides_change_one_by_one(wish: Change, old: str, new: str) -> None:
    assert change(HEAD + OVERRIDES, wish) == HEAD + OVERRIDES.replace(old, new)


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        (
            "spec:\n  model: q\n  default: true\n",
            override("a"),
            "spec:\n  model: q\n  overrides:\n    - engine: a\n      state: Paused\n  default: true\n",
        ),
        (
            "spec:\n  state: Active\n  default: true\n  model: q",
            override("10.0.0.1:80"),
            ("spec:\n  state: Active\n  overrides:\n    - engine: \"10.0.0.1:80\"\n"
            "      state: Paused\n  default: true\n  model: q"),
        ),
        (
            "spec: {model: q}",
            override("no"),
            'spec: {model: q, overrides: [{engine: "no", state: Paused}]}',
        ),
        ("spec:\n  model: q\n  overrides: []\n", override("a"), "spec:\n  model: q\n  overrides: [{engine: a, state: Paused}]\n"),
        (
            "spec:\n  overrides:\n  - engine: a\n    state: Paused # x\n  model: q\n",
            override("b"),
            "spec:\n  overrides:\n  - engine: a\n    state: Paused # x\n  - engine: b\n    state: Paused\n  model: q\n",
        ),
        (
            "spec:\n  overrides: [{engine: a, state: Paused},]\n  model: q\n",
            override("b"),
            "spec:\n  overrides: [{engine: a, state: Paused}, {engine: b, state: Paused},]\n  model: q\n",
        ),
        (
            "spec:\n  model: q\n  overrides:\n    - engine: a\n      state: Paused",
            override("b"),
            "spec:\n  model: q\n  overrides:\n    - engine: a\n      state: Paused\n    - engine: b\n      state: Paused",
        ),
        # The last one goes with its key.
        (
            "spec:\n  model: q\n  overrides: # all\n    # one\n    - engine: a\n      state: Paused # x\n  # below\n  default: true\n",
            DropOverride("a"),
            "spec:\n  model: q\n  # below\n  default: true\n",
        ),
        (
            "spec:\r\n  model: q\r\n  overrides:\r\n  - {engine: a, state: Paused}",
            DropOverride("a"),
            "spec:\r\n  model: q",
        ),
        (
            "spec: {overrides: [{engine: a, state: Paused}], model: q}",
            DropOverride("a"),
            "spec: {model: q}",
        ),
        (
            "spec: {model: q, overrides: [{engine: a, state: Paused}, {engine: b, state: Paused}]}",
            DropOverride("b"),
            "spec: {model: q, overrides: [{engine: a, state: Paused}]}",
        ),
        (
            "spec:\n  model: q\n  overrides: [\n    {engine: a, state: Paused}, # a\n    # for b\n    {engine: b, state: Paused} # b\n  ]\n",
            DropOverride("a"),
            "spec:\n  model: q\n  overrides: [\n    # a\n    # for b\n    {engine: b, state: Paused} # b\n  ]\n",
        ),
        (
            "spec:\n  model: q\n  overrides: [\n    {engine: a, state: Paused}, # a\n    {engine: b, state: Paused}\n  ]\n",
            DropOverride("b"),
            "spec:\n  model: q\n  overrides: [\n    {engine: a, state: Paused} # a\n  ]\n",
        ),
        (
            "spec:\n  model: q\n  overrides: [\n    {engine: a, state: Paused}, # a\n    {engine: b, state: Paused}, # b\n  ]\n",
            DropOverride("b"),
            "spec:\n  model: q\n  overrides: [\n    {engine: a, state: Paused}, # a\n    # b\n  ]\n",
        ),
    ],
)  # fmt: skip
def test_an_override_comes_and_goes(before: str, wish: Change, after: str) -> None:
    assert change(HEAD + before, wish) == HEAD + after


REF = SetValue(("weightVersionRef", "name"), "q-8")
NONCE = SetValue(("refitNonce",), "2026-01-02T03:04:05.678Z")
HOLD = SetValue(("rollout", "paused"), True)


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        ("spec:\n  model: q # m\n  default: true\n", REF, "spec:\n  model: q # m\n  weightVersionRef:\n    name: q-8\n  default: true\n"),
        ("spec:\n  state: Active # s\n  model: q", REF, "spec:\n  state: Active # s\n  weightVersionRef:\n    name: q-8\n  model: q"),
        ("spec:\n  model: q\n  weightVersionRef: # these\n    # by hand\n    name: q-7 # seven\n", REF, "spec:\n  model: q\n  weightVersionRef: # these\n    # by hand\n    name: q-8 # seven\n"),
        ("spec:\n  model: q\n  weightVersionRef: {name: 'q-7'} # seven\n", REF, "spec:\n  model: q\n  weightVersionRef: {name: 'q-8'} # seven\n"),
        ('spec: {model: q, weightVersionRef: {"name": "q-7"}}', REF, 'spec: {model: q, weightVersionRef: {"name": "q-8"}}'),
        ("spec: {model: q}\n", REF, "spec: {model: q, weightVersionRef: {name: q-8}}\n"),
        ("spec:\n  model: q\n  weightVersionRef: {name: q-7}\n", SetValue(REF.path, "7"), 'spec:\n  model: q\n  weightVersionRef: {name: "7"}\n'),
        ("spec:\r\n  model: q\r\n", REF, "spec:\r\n  model: q\r\n  weightVersionRef:\r\n    name: q-8\r\n"),
        (
            "spec:\n  model: q\n  weightVersionRef:\n    name: q-7 # x\n  # below\n  default: true\n",
            NONCE,
            'spec:\n  model: q\n  weightVersionRef:\n    name: q-7 # x\n  refitNonce: "2026-01-02T03:04:05.678Z"\n  # below\n  default: true\n',
        ),
        ("spec: {refitNonce: one, model: q}", NONCE, 'spec: {refitNonce: "2026-01-02T03:04:05.678Z", model: q}'),
        ("spec: {refitNonce: 'one', model: q}", SetValue(NONCE.path, "it's"), "spec: {refitNonce: 'it''s', model: q}"),
        ('spec: {refitNonce: "one", model: q}', SetValue(NONCE.path, 'a "b" \\ 😀'), 'spec: {refitNonce: "a \\"b\\" \\\\ 😀", model: q}'),
        ("spec:\n  model: q\n", HOLD, "spec:\n  model: q\n  rollout:\n    paused: true\n"),
        ("spec:\n  model: q\n  rollout:\n    maxUnavailable: 2 # two\n  default: true\n", HOLD, "spec:\n  model: q\n  rollout:\n    maxUnavailable: 2 # two\n    paused: true\n  default: true\n"),
        ("spec:\n  model: q\n  rollout: {mode: InPlace} # m\n", HOLD, "spec:\n  model: q\n  rollout: {mode: InPlace, paused: true} # m\n"),
        ("spec:\n  model: q\n  rollout: {}\n", HOLD, "spec:\n  model: q\n  rollout: {paused: true}\n"),
        ("spec:\n  model: q\n  rollout: {paused: true} # h\n", SetValue(HOLD.path, False), "spec:\n  model: q\n  rollout: {paused: false} # h\n"),
        ("spec:\n  model: q\n  rollout:\n    paused:   false # h", HOLD, "spec:\n  model: q\n  rollout:\n    paused:   true # h"),
    ],
)  # fmt: skip
def test_a_value_is_written_at_its_keys(before: str, wish: Change, after: str) -> None:
    assert change(HEAD + before, wish) == HEAD + after


@pytest.mark.parametrize(
    ("before", "wish", "after"),
    [
        ('{"spec": {"model": "q"}}', REF, '{"spec": {"model": "q", "weightVersionRef": {"name": "q-8"}}}'),
        ('{"spec": {"model": "q", "rollout": {}}}', HOLD, '{"spec": {"model": "q", "rollout": {"paused": true}}}'),
        (
            '{\n  "spec": {\n    "rollout": {\n      "mode": "InPlace"\n    }\n  }\n}\n',
            HOLD,
            '{\n  "spec": {\n    "rollout": {\n      "mode": "InPlace",\n      "paused": true\n    }\n  }\n}\n',
        ),
    ],
)  # fmt: skip
def test_a_value_in_json_is_jsons(before: str, wish: Change, after: str) -> None:
    assert change(before, wish, file="f.json") == after


def test_several_changes_come_together_or_not_at_all() -> None:
    text = f"{HEAD}spec:\n  model: q\n  rollout: &r {{mode: InPlace}}\nx: *r\n"
    both = edited("f.yaml", text.encode(), document=0, changes=[REF, NONCE]).decode()
    assert both == text.replace(
        "model: q\n",
        'model: q\n  weightVersionRef:\n    name: q-8\n  refitNonce: "2026-01-02T03:04:05.678Z"\n',
    )
    with pytest.raises(EditImpossible):
        edited("f.yaml", text.encode(), document=0, changes=[REF, HOLD])


@pytest.mark.parametrize(
    ("text", "wish", "why"),
    [
        (
            "x: &s Active\nspec: {model: q, state: *s}\n",
            PAUSE,
            ("the value is written elsewhere (alias *s); change it by hand: write `state: Paused` "
            "below `spec`"),
        ),
        (
            "spec: {state: &s Active, model: q}\nx: *s\n",
            PAUSE,
            ("the text is shared (by an alias), or the layout is unusual; change it by hand: write "
            "`state: Paused` below `spec`"),
        ),
        ("x: &s {model: q}\nspec: *s\n", PAUSE, "the spec is written elsewhere (by an alias)"),
        ("spec: &s {model: q}\nx: *s\n", PAUSE, "the text is shared (by an alias)"),
        ("spec: &s\n  model: q\nx: *s\n", override("a"), "`- {engine: a, state: Paused}` below `spec.overrides`"),
        (
            "x: &o [{engine: a, state: Paused}]\nspec: {model: q, overrides: *o}\n",
            DropOverride("a"),
            ("the list of overrides is written elsewhere (by an alias); change it by hand: remove "
            "the entry of the engine a below `spec.overrides`"),
        ),
        ("spec:\n  model: q\n  state: >-\n    Active\n", PAUSE, "the value is not a word in one line"),
        ('spec:\n  model: q\n  state: "Act\\\n    ive"\n', PAUSE, "with escapes or over several lines"),
        (
            "x: &w {name: q-7}\nspec: {model: q, weightVersionRef: *w}\n",
            REF,
            ("as weightVersionRef is written elsewhere (by an alias), or has no keys; change it by "
            "hand: write `weightVersionRef: {name: q-8}` below `spec`"),
        ),
        ("spec:\n  model: q\n  rollout:\n", HOLD, "write `rollout: {paused: true}` below `spec`"),
        ("spec:\n  model: q\n  rollout: &r {mode: InPlace}\nx: *r\n", HOLD, "the text is shared (by an alias)"),
        ("spec:\n  ? model\n  : q\n", PAUSE, "the layout is unusual"),
        ("spec:\n  ? overrides\n  : - {engine: a, state: Paused}\n  model: q\n", DropOverride("a"), "the layout is unusual"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_alone_is_refused(text: str, wish: Change, why: str) -> None:
    with pytest.raises(EditImpossible) as caught:
        change(f"# c\n{HEAD}{text}", wish)
    assert str(caught.value).startswith("f.yaml:2: cannot be changed safely, as ")
    assert why in str(caught.value)
