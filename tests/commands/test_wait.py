"""``steersman wait`` against the real API."""

from typing import Any

import pytest

from steersman_operator.commands.wait import command
from tests.api.support import (
    Running,
    condition,
    draining,
    engine,
    fleet,
    given_up,
    paused,
    pool,
)
from tests.commands.support import Beside, Ran, Screen, ran


@pytest.fixture
def wait(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def wait(*arguments: str, timeout: str = "200ms") -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory, "--timeout", timeout)

    return wait


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("condition=Ready", "condition met: Ready=True"),
        ("condition=ready", "condition met: Ready=True"),
        ("condition=Ready=True", "condition met: Ready=True"),
        ("condition=Degraded=False", "condition met: Degraded=False"),
        ("state=Active", "is Active"),
        ("state=active", "is Active"),
        ("version=7", "has version 7"),
    ],
)
def test_what_is_there_already(wait: Any, what: str, words: str) -> None:
    assert wait("qwen", "--for", what) == Ran(0, f"rolloutengine/qwen {words}\n", "")


def test_a_condition_comes(there: Running, screen: Screen, directory: str) -> None:
    there.become(fleet(pool("qwen", draining("e0"))))
    waiting = Beside(command, "qwen", "--for", "condition=Ready", "-f", directory, "--timeout", "0")
    there.become(fleet(pool("qwen", engine("e0"))))

    assert waiting.end() == 0
    assert screen.read().out == "rolloutengine/qwen condition met: Ready=True\n"


def test_what_was_saved_just_now_is_waited_for(there: Running, wait: Any) -> None:
    """The fleet is as it should have been before the edit."""

    def read() -> None:
        there.fleet.now = fleet(pool("qwen", draining("e0"), state="Paused", generation=2))

    there.fleet.on_read = read

    assert wait("qwen", "--for", "condition=Ready").code == 3
    assert there.fleet.reads == 1


def test_what_is_wrong_with_the_manifest_is_told_at_once_and_at_the_end(
    there: Running, wait: Any
) -> None:
    wrong = "qwen.yaml:7: spec.stat: unknown key `stat`"
    there.become(fleet(pool("qwen", engine("e0"), manifest_errors=[wrong]), errors=[wrong, "x"]))

    assert wait("qwen", "--for", "state=Active") == Ran(
        0, "rolloutengine/qwen is Active\n", f"Warning: {wrong}\n"
    )
    assert wait("qwen", "--for", "state=Paused") == Ran(
        3,
        "",
        f"Warning: {wrong}\n"
        "Error: timed out after 0.2 s waiting for state Paused of rolloutengine/qwen\n"
        f"  it is to be Active\n  {wrong}\n",
    )


def test_of_a_pool_that_is_not_there_a_bad_file_may_be_the_reason(
    there: Running, wait: Any
) -> None:
    there.become(fleet(errors=["qwen.yaml:1: has no `kind`"]))

    result = wait("qwen", "--for", "state=Active")

    assert result.code == 1
    assert result.err.startswith("Warning: qwen.yaml:1: has no `kind`\n")


def test_it_takes_too_long(there: Running, wait: Any) -> None:
    there.become(
        fleet(
            pool(
                "qwen",
                draining("e0"),
                conditions=[condition("Ready", "False", "EnginesNotReady", "e0: Draining")],
            )
        )
    )

    assert wait("qwen", "--for", "condition=Ready") == Ran(
        3,
        "",
        "Error: timed out after 0.2 s waiting for condition Ready=True of rolloutengine/qwen\n"
        "  it is False: e0: Draining\n",
    )
    assert wait("qwen", "--for", "condition=Unsynced").err.endswith(
        "  the operator does not tell it\n"
    )


def test_a_state_of_one_engine(there: Running, wait: Any) -> None:
    there.become(fleet(pool("qwen", paused("e0"), engine("e1"))))

    assert wait("qwen", "--for", "state=Paused", "--engine", "e0") == Ran(
        0, "engine/qwen/e0 is Paused\n", ""
    )
    late = wait("qwen", "--for", "state=Paused", "--engine", "e1")
    assert late.code == 3
    assert late.err.endswith("  it is to be Active\n")


def test_a_state_that_nobody_has_asked_for_yet_is_waited_for(
    there: Running, screen: Screen, directory: str
) -> None:
    waiting = Beside(command, "qwen", "--for", "state=Paused", "-f", directory, "--timeout", "0")
    there.become(fleet(pool("qwen", draining("e0"), state="Paused", generation=2)))
    there.become(fleet(pool("qwen", paused("e0"), state="Paused", generation=2)))

    assert waiting.end() == 0


def test_a_state_that_was_given_up_is_not_waited_for(there: Running, wait: Any) -> None:
    there.become(fleet(pool("qwen", given_up("e0", "not drained"), state="Paused")))

    assert wait("qwen", "--for", "state=Paused", timeout="0") == Ran(
        1,
        "",
        "Error: rolloutengine/qwen does not come to state Paused: qwen/e0: given up: not drained\n",
    )


def test_a_version_of_all_or_of_one(there: Running, wait: Any) -> None:
    there.become(
        fleet(pool("qwen", engine("e0", version="8"), engine("e1", version=None, trust="unsynced")))
    )

    late = wait("qwen", "--for", "version=8")
    assert late.code == 3
    assert late.err.endswith("  qwen/e1: no version, unsynced\n")
    for name in ("e0", "qwen/e0", "engine/qwen/e0"):
        assert wait("qwen", "--for", "version=8", "--engine", name).code == 0


def test_who_is_not_there(there: Running, wait: Any) -> None:
    assert wait("qwne", "--for", "state=Active") == Ran(
        1, "", 'steersman x: rolloutengine "qwne" not found; did you mean qwen?\n'
    )
    assert wait("qwen", "--for", "version=7", "--engine", "e9").code == 1


def test_an_operator_that_has_just_started_may_not_know_it_yet(
    there: Running, screen: Screen, directory: str
) -> None:
    young = fleet()
    young["operator"]["published"] = False
    there.become(young)
    waiting = Beside(command, "qwen", "--for", "condition=Ready", "-f", directory, "--timeout", "0")
    there.become(fleet(pool("qwen", engine("e0"))))

    assert waiting.end() == 0


def test_a_restart_meanwhile(there: Running, screen: Screen, directory: str) -> None:
    there.become(fleet(pool("qwen", draining("e0"))))
    there.leave()
    waiting = Beside(
        command, "qwen", "--for", "condition=Ready", "-f", directory, "--timeout", "20s"
    )
    there.fleet.now = fleet(pool("qwen", engine("e0")))
    there.serve()

    assert waiting.end() == 0


def test_an_operator_that_stays_away(there: Running, wait: Any) -> None:
    there.leave()

    result = wait("qwen", "--for", "condition=Ready")

    assert result.code == 3
    assert result.err.endswith(
        "  the operator is gone (its socket is not there); waiting for it to come back\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "condition=Redy"], "'Redy' is not a condition; did you mean Ready?"),
        (["--for", "condition=Ready=Maybe"], "'Maybe' is not a status of a condition"),
        (["--for", "state=Stopped"], "'Stopped' is not a state; there are Active, Paused, Asleep"),
        (["--for", "delete"], "'delete' cannot be waited for; it can be condition=Ready,"),
        (["--for", "version="], "'version=' cannot be waited for"),
        (["--for", "condition=Ready", "--engine", "e0"], "leave --engine out"),
        ([], "the following arguments are required: --for"),
    ],
)
def test_wrong_usage(wait: Any, arguments: list[str], words: str) -> None:
    result = wait("qwen", *arguments)

    assert result.code == 2
    assert words in result.err
