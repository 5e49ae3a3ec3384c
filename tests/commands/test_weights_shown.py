"""What ``steersman get`` and ``describe`` show of the weights that engines are to have."""

import json
from typing import Any

import pytest

from steersman_operator.commands import describe as describing
from steersman_operator.commands import get as getting
from tests.api.support import Running, weight_version
from tests.commands.rollouts import awaiting, having, loading, rolling, target
from tests.commands.support import Ran, ran


@pytest.fixture
def get(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def get(*arguments: str) -> Ran:
        return ran(capsys, getting.command, *arguments, "-f", there.layout.directory)

    return get


@pytest.fixture
def describe(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def describe(*arguments: str) -> Ran:
        return ran(capsys, describing.command, *arguments, "-f", there.layout.directory)

    return describe


def test_what_engines_are_to_have_and_how_many_do(there: Running, get: Any) -> None:
    content = rolling(having("e0"), loading("e1"))
    content["weight_versions"] = [
        weight_version("qwen-41", version="41"),
        weight_version("qwen-42", version="42", source="Disk /ckpt/42"),
        weight_version("other-42", version="42", model="other"),
    ]
    there.become(content)

    assert get("re").out == (
        """\
NAME   MODEL           STATE    READY   OPEN   PAUSED   ASLEEP   VERSION   TARGET   SYNCED   AGE
qwen   Qwen/Qwen3-8B   Active   1/2     1      0        0        7         42       1/2      -
"""
    )
    assert get("wv").out == (
        """\
NAME       MODEL           VERSION   ORDINAL   SOURCE                WANTED-BY   ENGINES   AGE
qwen-41    Qwen/Qwen3-8B   41        -         Disk /models/qwen-7   -           1         -
qwen-42    Qwen/Qwen3-8B   42        -         Disk /ckpt/42         qwen        1         -
other-42   other           42        -         Disk /models/qwen-7   -           0         -
"""
    )
    status = json.loads(get("re", "qwen", "-o", "json").out)["status"]
    assert (status["target"], status["synced"]) == (target(), 1)
    assert [one["synced"] for one in status["engines"]] == [True, False]


def test_the_weights_that_engines_are_to_have(there: Running, describe: Any) -> None:
    there.become(rolling(having("e0"), loading("e1")))
    assert (
        "Version:            7\nTarget:             42 (Disk /ckpt/42), 1 of 2 engines have it\n"
        in describe("re", "qwen").out
    )
    external = target(source="External", path="")
    there.become(rolling(having("e0"), awaiting("e1"), to=external, paused=True))
    page = describe("re", "qwen").out
    assert "Target:             42 (External), 1 of 2 engines have it, paused\n" in page
    assert "  e1: waiting for the transfer of 42\n" in page


def test_a_weight_version_that_is_wanted(there: Running, describe: Any) -> None:
    content = rolling(having("e0"), loading("e1"))
    spec = {"checksum": "8c1f"}
    content["weight_versions"] = [weight_version("qwen-42", version="42", spec=spec)]
    there.become(content)
    assert describe("wv", "qwen-42").out.endswith(
        "Checksum:   8c1f\nWanted by:  qwen\nEngines:    1 have it\n"
    )
