"""``steersman get`` against the real API."""

import json
import os
import pty
import sys
import time
from typing import Any

import pytest

from steersman_operator.commands.get import command
from steersman_operator.commands.objects import API_VERSION
from steersman_operator.commands.tables import age
from steersman_operator.commands.yaml_text import yaml_text
from steersman_operator.resources.group import API_VERSION as WRITTEN
from tests.api.support import (
    Running,
    condition,
    draining,
    engine,
    fleet,
    given_up,
    paused,
    pool,
    proxy,
    weight_version,
)
from tests.commands.support import Beside, Ran, Screen, ran


@pytest.fixture
def get(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def get(*arguments: str) -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory)

    return get


def whole() -> dict[str, Any]:
    """A fleet with something of everything."""
    qwen = pool(
        "qwen",
        paused("e0"),
        draining("e1", "waiting for proxy-0.1 (3 in flight)"),
        state="Paused",
        generation=4,
        created=time.time() - 330.5,
        overrides=[{"engine": "e0", "state": "Paused"}],
        spec={"model": "Qwen/Qwen3-8B", "state": "Paused"},
        conditions=[
            condition("Ready", "False", "EnginesNotReady", "e1: Draining"),
            condition("Progressing", "True", "Operation", "e1: Draining"),
            condition("Degraded"),
        ],
    )
    small = pool(
        "tiny",
        engine("t10", version=None, trust="unknown", runtime="vllm"),
        models=["tiny", "tiny-lora"],
        default=False,
        runtime="vllm",
        fleet_max=None,
        line=14,
        created=time.time() - 40.5,
    )
    return fleet(
        qwen,
        small,
        proxies=[
            proxy(),
            proxy("proxy-1.2", connected=False, acked=None, heard_age=None, pid=None),
        ],
        weight_versions=[
            weight_version(created=time.time() - 7300.5),
            weight_version(
                "qwen-rl", version="step-120", ordinal=120, source="External", digest="sha256:ab"
            ),
        ],
    )


# --- tables ---------------------------------------------------------------------------------------


def test_rollout_engines(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("re") == Ran(
        0,
        """\
NAME   MODEL            STATE    READY   OPEN   PAUSED   ASLEEP   VERSION   TARGET   SYNCED   AGE
qwen   Qwen/Qwen3-8B    Paused   1/2     0      1        0        7         -        -        5m30s
tiny   tiny,tiny-lora   Active   1/1     1      0        0        -         -        -        40s
""",
        "",
    )


def test_rollout_engines_wide(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("rolloutengines", "-o", "wide").out == (
        """\
NAME   MODEL            STATE    READY   OPEN   PAUSED   ASLEEP   VERSION   TARGET   SYNCED   AGE     RUNTIME   EPOCH   FILE           CONDITIONS
qwen   Qwen/Qwen3-8B    Paused   1/2     0      1        0        7         -        -        5m30s   sglang    1.4     qwen.yaml:3    Progressing
tiny   tiny,tiny-lora   Active   1/1     1      0        0        -         -        -        40s     vllm      1.4     tiny.yaml:14   Ready
"""
    )


def test_engines(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("engines").out == (
        """\
NAME   POOL   STATE    DESIRED   GATE     PHASE      VERSION   TRUST
e0     qwen   Paused   Paused    closed   Settled    7         verified
e1     qwen   Active   Paused    closed   Draining   7         verified
t10    tiny   Active   Active    open     Settled    -         unknown
"""
    )


def test_engines_wide_of_one_pool(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("engines", "--pool", "qwen", "-o", "wide").out == (
        """\
NAME   POOL   STATE    DESIRED   GATE     PHASE      VERSION   TRUST      URL                      RUNTIME   ROLE    IN-FLIGHT   PROBLEM
e0     qwen   Paused   Paused    closed   Settled    7         verified   http://127.0.0.1:31000   sglang    plain   -           -
e1     qwen   Active   Paused    closed   Draining   7         verified   http://127.0.0.1:31001   sglang    plain   3           waiting for proxy-0.1 (3 in flight)
"""
    )


def test_what_takes_no_requests_is_not_open(there: Running, get: Any) -> None:
    why = "takes no requests until it shows version 7"
    unsynced = engine("e0", version=None, trust="unsynced", withheld=why)
    there.become(fleet(pool("qwen", unsynced, engine("e1"))))

    assert get("re", "--no-headers").out.split()[3:5] == ["1/2", "1"]
    assert why in get("engines", "-o", "wide").out
    assert not json.loads(get("engine", "e0", "-o", "json").out)["status"]["takesRequests"]


def test_proxies_and_weight_versions(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("proxies").out == (
        """\
NAME        CONNECTED   EPOCH   HEARD   PID
proxy-0.1   True        1.4     0s      4711
proxy-1.2   False       -       never   -
"""
    )
    assert get("proxy", "proxy-0.1", "-o", "wide").out == (
        """\
NAME        CONNECTED   EPOCH   HEARD   PID    METRICS
proxy-0.1   True        1.4     0s      4711   http://127.0.0.1:29000
"""
    )
    assert get("wv").out == (
        """\
NAME      MODEL           VERSION    ORDINAL   SOURCE                WANTED-BY   ENGINES   AGE
qwen-7    Qwen/Qwen3-8B   7          -         Disk /models/qwen-7   -           2         121m
qwen-rl   Qwen/Qwen3-8B   step-120   120       External              -           0         -
"""
    )


def test_everything(there: Running, get: Any) -> None:
    there.become(whole())

    assert (
        get().out
        == get("all").out
        == (
            """\
NAME                 MODEL            STATE    READY   OPEN   PAUSED   ASLEEP   VERSION   TARGET   SYNCED   AGE
rolloutengine/qwen   Qwen/Qwen3-8B    Paused   1/2     0      1        0        7         -        -        5m30s
rolloutengine/tiny   tiny,tiny-lora   Active   1/1     1      0        0        -         -        -        40s

NAME                    MODEL           VERSION    ORDINAL   SOURCE                WANTED-BY   ENGINES   AGE
weightversion/qwen-7    Qwen/Qwen3-8B   7          -         Disk /models/qwen-7   -           2         121m
weightversion/qwen-rl   Qwen/Qwen3-8B   step-120   120       External              -           0         -

NAME              POOL   STATE    DESIRED   GATE     PHASE      VERSION   TRUST
engine/qwen/e0    qwen   Paused   Paused    closed   Settled    7         verified
engine/qwen/e1    qwen   Active   Paused    closed   Draining   7         verified
engine/tiny/t10   tiny   Active   Active    open     Settled    -         unknown

NAME              CONNECTED   EPOCH   HEARD   PID
proxy/proxy-0.1   True        1.4     0s      4711
proxy/proxy-1.2   False       -       never   -
"""
        )
    )


def test_without_titles(get: Any) -> None:
    assert get("engines", "--no-headers").out.splitlines()[0].startswith("e0 ")


def test_in_a_terminal_the_words_have_colours(
    there: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    there.become(fleet(pool("qwen", given_up("e0") | {"trust": "unknown"})))
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert ran_in(there, "engines") == 0
        monkeypatch.setenv("NO_COLOR", "1")
        assert ran_in(there, "engines") == 0
    with os.fdopen(leader, "rb", buffering=0) as reader:
        shown = reader.read(4096).decode()
    coloured, plain = shown.split("\r\n")[:2], shown.split("\r\n")[2:4]
    assert coloured[0].startswith("\x1b[1mNAME ")
    assert "\x1b[31mGivenUp" in coloured[1]
    assert coloured[1].endswith(" unknown"), "weights without a name are no trouble"
    assert "\x1b" not in "".join(plain)


def ran_in(there: Running, *arguments: str) -> int:
    from tests.commands.support import run

    return run(command, *arguments, "-f", str(there.layout.directory))


# --- names ----------------------------------------------------------------------------------------


def test_by_name(there: Running, get: Any) -> None:
    there.become(whole())

    for arguments in (["re", "tiny"], ["re/tiny"], ["rolloutengine/tiny"], ["RE/tiny"]):
        assert [line.split()[0] for line in get(*arguments).out.splitlines()] == ["NAME", "tiny"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["engine", "e1"],
        ["engine", "qwen/e1"],
        ["engine/qwen/e1"],
        ["engines", "127.0.0.1:31001"],
        ["engines", "http://127.0.0.1:31001"],
        ["engines", "engine/qwen/e1"],
    ],
)
def test_an_engine_by_any_of_its_names(get: Any, arguments: list[str]) -> None:
    assert get(*arguments, "-o", "name") == Ran(0, "engine/qwen/e1\n", "")


def test_what_is_not_there(there: Running, get: Any) -> None:
    there.become(whole())

    assert get("re", "qwne", "tiny", "-o", "name") == Ran(
        1,
        "rolloutengine/tiny\n",
        'Error: rolloutengine "qwne" not found; did you mean qwen?\n',
    )
    assert get("re", "zzz").err == ('Error: rolloutengine "zzz" not found; there are qwen, tiny\n')
    assert get("re", "zzz", "-o", "json") == Ran(
        1, "", 'Error: rolloutengine "zzz" not found; there are qwen, tiny\n'
    )
    assert get("engines", "--pool", "zzz").code == 1


def test_nothing_is_no_error(there: Running, get: Any) -> None:
    there.become(fleet(pool("empty")))

    assert get("wv") == Ran(0, "", "No resources found.\n")
    assert get("engines", "--pool", "empty") == Ran(0, "", "No resources found in empty.\n")
    assert json.loads(get("wv", "-o", "json").out)["items"] == []
    assert get("wv", "x").err == 'Error: weightversion "x" not found; there are no weightversions\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["engnes"], "'engnes' is not a kind of resource, did you mean engines?"),
        (["all", "qwen"], "`all` takes no names"),
        (["re", "--pool", "qwen"], "--pool goes with engines"),
        (["re", "-o", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_wrong_usage(get: Any, arguments: list[str], words: str) -> None:
    result = get(*arguments)

    assert result.code == 2
    assert words in result.err


def test_what_is_wrong_with_manifests_is_told_beside(there: Running, get: Any) -> None:
    there.become(fleet(pool("qwen", engine()), errors=["b.yaml:7: spec.state: must be Active"]))

    result = get("re", "-o", "name")

    assert result == Ran(
        0, "rolloutengine/qwen\n", "Warning: b.yaml:7: spec.state: must be Active\n"
    )


def test_what_two_resources_claim_is_told_beside(there: Running, get: Any) -> None:
    sentence = "a (a.yaml:1) and b (b.yaml:1) both serve the model 'm'; a, the older, keeps it"
    there.become(fleet(pool("qwen", engine()), warnings=[sentence]))

    assert get("re", "-o", "name") == Ran(0, "rolloutengine/qwen\n", f"Warning: {sentence}\n")


# --- objects --------------------------------------------------------------------------------------


def test_the_group_is_the_one_that_people_write() -> None:
    assert API_VERSION == WRITTEN


def test_a_list_of_objects(there: Running, get: Any) -> None:
    there.become(whole())

    content = json.loads(get("re", "-o", "json").out)

    assert (content["apiVersion"], content["kind"]) == ("v1", "List")
    qwen, _ = content["items"]
    assert (qwen["apiVersion"], qwen["kind"]) == (API_VERSION, "RolloutEngine")
    assert qwen["metadata"]["name"] == "qwen"
    assert qwen["metadata"]["generation"] == qwen["status"]["observedGeneration"] == 4
    assert qwen["metadata"]["creationTimestamp"].endswith("Z")
    assert qwen["metadata"]["annotations"] == {"rollout.steersman.io/manifest": "qwen.yaml:3"}
    assert qwen["spec"] == {"model": "Qwen/Qwen3-8B", "state": "Paused"}
    ready = [one for one in qwen["status"]["conditions"] if one["type"] == "Ready"]
    assert ready == [condition("Ready", "False", "EnginesNotReady", "e1: Draining")]
    assert qwen["status"]["counts"]["paused"] == 1
    assert [one["phase"] for one in qwen["status"]["engines"]] == ["Settled", "Draining"]


def test_one_name_gives_the_object_itself(get: Any) -> None:
    content = json.loads(get("engine", "e0", "-o", "json").out)

    assert content["kind"] == "Engine"
    assert content["metadata"]["name"] == "qwen/e0"
    assert content["spec"]["state"] == content["status"]["state"] == "Active"


def test_of_everything_there_are_objects(there: Running, get: Any) -> None:
    there.become(whole())

    items = json.loads(get("-o", "json").out)["items"]

    assert [one["kind"] for one in items] == [
        *["RolloutEngine"] * 2,
        *["WeightVersion"] * 2,
        *["Engine"] * 3,
        *["Proxy"] * 2,
    ]
    assert all(one["metadata"]["name"] for one in items)


def test_yaml_reads_back_as_the_same(there: Running, get: Any) -> None:
    from ruamel.yaml import YAML

    there.become(whole())

    text = get("all", "-o", "yaml").out

    made = YAML(typ="safe", pure=True).load(text)
    assert made == json.loads(get("all", "-o", "json").out)
    assert text.startswith("apiVersion: v1\nkind: List\nitems:\n- apiVersion: rollout.")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("qwen", "qwen"),
        ("no", '"no"'),
        ("042", '"042"'),
        ("", '""'),
        ("a: b", '"a: b"'),
        ("1.4", '"1.4"'),
        ("größe 大", '"größe 大"'),
        ("a\n\U0001f600\U000e0001\x85", '"a\\n\U0001f600\\U000e0001\\u0085"'),
        ("~", '"~"'),
        (None, "null"),
        (True, "true"),
        (7, "7"),
        ({}, "{}"),
        ([], "[]"),
        ([[1], {"a": [2]}], "- - 1\n- a:\n  - 2"),
    ],
)
def test_texts_in_yaml(value: Any, text: str) -> None:
    assert yaml_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-3, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (7200, "120m"),
        (3 * 3600, "3h"),
        (4 * 3600 + 60, "4h1m"),
        (47 * 3600, "47h"),
        (49 * 3600, "2d"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


# --- watching -------------------------------------------------------------------------------------


def test_a_watch_shows_what_changes(there: Running, screen: Screen, directory: str) -> None:
    watching = Beside(command, "engines", "-w", "-f", directory)
    screen.until("e1 ")
    there.become(fleet(pool("qwen", engine("e0"), draining("e1"))))
    screen.until("Draining")
    there.become(fleet(pool("qwen", engine("e0"), paused("e1")), errors=["b.yaml:1: no"]))
    screen.until("closed   Settled")
    there.become(fleet(pool("qwen", engine("e0"))))
    screen.until("engine/qwen/e1 is gone")
    there.lock.release()
    there.leave()

    assert watching.end() == 1
    assert screen.read().out == (
        """\
NAME   POOL   STATE     DESIRED   GATE     PHASE         VERSION   TRUST
e0     qwen   Active    Active    open     Settled       7         verified
e1     qwen   Active    Active    open     Settled       7         verified
e1     qwen   Active    Paused    closed   Draining      7         verified
e1     qwen   Paused    Paused    closed   Settled       7         verified
"""
    )
    assert "Warning: b.yaml:1: no\n" in screen.err
    assert "no fleet runs in" in screen.err


def test_a_watch_of_objects_shows_each_again_when_it_has_changed(
    there: Running, screen: Screen, directory: str
) -> None:
    watching = Beside(command, "engine", "e0", "-w", "-o", "json", "-f", directory)
    screen.until('"Settled"')
    there.become(fleet(pool("qwen", draining("e0"), engine("e1")), proxies=[proxy()]))
    screen.until('"Draining"')
    there.lock.release()
    there.leave()

    assert watching.end() == 1
    decoder, text, phases = json.JSONDecoder(), screen.read().out, []
    while text := text.lstrip():
        content, end = decoder.raw_decode(text)
        phases.append(content["status"]["phase"])
        text = text[end:]
    assert phases == ["Settled", "Draining"]


def test_a_watch_goes_on_with_the_next_operator(
    there: Running, screen: Screen, directory: str
) -> None:
    watching = Beside(command, "engines", "-w", "-f", directory)
    screen.until("e1 ")
    there.leave()
    screen.until("the operator is gone")
    there.fleet.now = fleet(pool("qwen", engine("e0"), paused("e1")))
    there.serve()
    screen.until("Paused")
    there.lock.release()
    there.leave()

    assert watching.end() == 1
    assert screen.read().out.count("e0 ") == 1, "what has not changed is not shown again"


def test_a_watch_of_what_is_not_there(get: Any) -> None:
    assert get("re", "zzz", "-w").code == 1
