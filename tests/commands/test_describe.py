"""``steersman describe`` against the real API."""

import time
from typing import Any

import pytest

from steersman_operator.commands.describe import command
from tests.api.support import (
    Running,
    condition,
    draining,
    engine,
    fleet,
    paused,
    pool,
    proxy,
    weight_version,
)
from tests.commands.support import Ran, ran


@pytest.fixture
def describe(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def describe(*arguments: str) -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory)

    return describe


def whole() -> dict[str, Any]:
    error = "qwen.yaml:7: spec.drift: must be Observe or Enforce, found 'x'"
    return fleet(
        pool(
            "qwen",
            paused("e0"),
            draining("e1"),
            state="Paused",
            generation=4,
            created=time.time() - 330.5,
            manifest_errors=[error],
            conditions=[
                condition("Ready", "False", "EnginesNotReady", "e1: Draining"),
                condition("Progressing", "True", "Operation", "e1: Draining"),
                condition("Degraded"),
            ],
        ),
        proxies=[proxy(acked="1.3")],
        weight_versions=[weight_version(digest="sha256:ab")],
        errors=[error],
        warnings=["qwen (qwen.yaml:3) and b (b.yaml:1) both serve the model 'm'"],
    )


def test_a_rollout_engine(there: Running, describe: Any) -> None:
    there.become(whole())

    assert describe("re", "qwen") == Ran(
        0,
        """\
Name:               qwen
Manifest:           qwen.yaml:3
Age:                5m30s
Generation:         4
Model:              Qwen/Qwen3-8B (default)
Runtime:            sglang
State:              Paused
Version:            7
Drift:              Observe
Unreachable proxy:  Wait
Engines:            2 in all, 1 ready, 0 open, 1 paused
Manifest errors:
  qwen.yaml:7: spec.drift: must be Observe or Enforce, found 'x'
Conditions:
  TYPE          STATUS   REASON            MESSAGE
  Ready         False    EnginesNotReady   e1: Draining
  Progressing   True     Operation         e1: Draining
  Degraded      False    AsExpected
Engines:
  NAME   POOL   STATE    DESIRED   GATE     PHASE      VERSION   TRUST
  e0     qwen   Paused   Paused    closed   Settled    7         verified
  e1     qwen   Active   Paused    closed   Draining   7         verified
On their way, or in trouble:
  e1: draining, waiting for proxy-0.1 (3 in flight)
""",
        "",
    )


def test_an_engine(there: Running, describe: Any) -> None:
    there.become(whole())

    assert describe("engine/qwen/e1").out == (
        """\
Name:           qwen/e1
Address:        127.0.0.1:31001
URL:            http://127.0.0.1:31001
Runtime:        sglang
Role:           plain
Desired state:  Paused
State:          Active
Gate:           closed
Phase:          Draining
Stands:         draining, waiting for proxy-0.1 (3 in flight)
In flight:      3
Version:        7
Trust:          verified
Reachable:      yes
Boot:           b1
"""
    )


def test_a_proxy(there: Running, describe: Any) -> None:
    there.become(whole())

    assert describe("proxy", "proxy-0.1").out == (
        """\
Name:                proxy-0.1
Boot:                b
Process:             4711
Connected:           yes
Listed:              yes
Table acknowledged:  1.3, the newest is 1.4
Heard:               0s ago
Metrics:             http://127.0.0.1:29000
Endpoint:            http://127.0.0.1:30000
"""
    )


def test_a_weight_version(there: Running, describe: Any) -> None:
    there.become(whole())

    assert describe("wv", "qwen-7").out == (
        """\
Name:      qwen-7
Manifest:  versions.yaml:1
Model:     Qwen/Qwen3-8B
Version:   7
Source:    Disk /models/qwen-7
Digest:    sha256:ab
Engines:   2 have it
"""
    )


def test_the_whole_fleet(there: Running, describe: Any) -> None:
    there.become(whole())

    assert describe().out == (
        """\
Endpoint:  http://127.0.0.1:30000
Operator:  pid 4710, up for 60s, term 1
Metrics:   http://127.0.0.1:28000
Table:     1.4
Manifest errors:
  qwen.yaml:7: spec.drift: must be Observe or Enforce, found 'x'
Manifest warnings:
  qwen (qwen.yaml:3) and b (b.yaml:1) both serve the model 'm'
RolloutEngines:
  NAME   MODEL           STATE    READY   OPEN   PAUSED   ASLEEP   VERSION   TARGET   SYNCED   AGE
  qwen   Qwen/Qwen3-8B   Paused   1/2     0      1        0        7         -        -        5m30s
WeightVersions:
  NAME     MODEL           VERSION   ORDINAL   SOURCE                WANTED-BY   ENGINES   AGE
  qwen-7   Qwen/Qwen3-8B   7         -         Disk /models/qwen-7   -           2         -
Engines:
  NAME   POOL   STATE    DESIRED   GATE     PHASE      VERSION   TRUST
  e0     qwen   Paused   Paused    closed   Settled    7         verified
  e1     qwen   Active   Paused    closed   Draining   7         verified
Proxies:
  NAME        CONNECTED   EPOCH   HEARD   PID
  proxy-0.1   True        1.3     0s      4711
"""
    )


def test_all_of_a_kind(there: Running, describe: Any) -> None:
    assert describe("engines").out.count("Name: ") == 2
    assert describe("wv").out == "There are no weightversions.\n"


def test_what_takes_no_requests_is_told(there: Running, describe: Any) -> None:
    why = "takes no requests until it shows version 7"
    there.become(fleet(pool("qwen", engine("e0", version=None, trust="unsynced", withheld=why))))

    assert f"  e0: active, but {why}\n" in describe("re", "qwen").out
    assert f"Stands:         active, but {why}\n" in describe("engine", "e0").out


def test_before_the_first_table(there: Running, describe: Any) -> None:
    first = "waiting for the first table"
    pending = {"phase": "Pending", "gate": "closed", "problem": first, "waiting": first}
    young = fleet(
        pool("qwen", engine("e0", phase="Unknown", version=None), engine("e1", **pending))
    )
    young["operator"]["published"] = False
    there.become(young)

    assert "no table published yet" in describe().out
    page = describe("re", "qwen").out
    assert "  e0: not seen yet\n" in page
    assert "  e1: pending, waiting for the first table\n" in page


def test_what_is_not_there(describe: Any) -> None:
    assert describe("re", "qwne") == Ran(
        1, "", 'Error: rolloutengine "qwne" not found; did you mean qwen?\n'
    )
    assert describe("pods").code == 2
