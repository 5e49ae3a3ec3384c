"""``steersman rollout`` against the real API."""

from typing import Any

import pytest

from steersman_operator.commands.rollout import command
from steersman_operator.fleet.spec import SourceKind, Weights
from tests.api.support import Done, NoSuch, Refused, Running, engine, fleet, pool
from tests.commands.rollouts import (
    awaiting,
    failed,
    having,
    lacking,
    loading,
    rolling,
    sleeping,
    target,
)
from tests.commands.support import Beside, Ran, Screen, ran


@pytest.fixture
def do(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    def do(*arguments: str) -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory)

    return do


# --- status ---------------------------------------------------------------------------------------


def test_what_is_done_ends_at_once(there: Running, do: Any) -> None:
    there.become(rolling(having("e0"), having("e1")))
    done = "rolloutengine/qwen successfully rolled out: 2 of 2 engines have 42\n"
    for arguments in (["qwen"], ["re/qwen"], ["re", "qwen"], ["qwen", "-w"]):
        assert do("status", *arguments) == Ran(0, done, "")


def test_it_is_followed_by_default(there: Running, screen: Screen, directory: str) -> None:
    there.become(rolling(having("e0"), loading("e1")))
    status = Beside(command, "status", "qwen", "-f", directory)
    screen.until("1 of 2 engines have 42...")
    # Whatever it is to have: another target is followed, too.
    there.become(rolling(lacking("e0", "42"), loading("e1"), to=target("43"), generation=3))
    screen.until("0 of 2 engines have 43...")
    there.become(rolling(having("e0", "43"), having("e1", "43"), to=target("43"), generation=3))
    assert status.end() == 0
    assert screen.read().out.endswith("2 of 2 engines have 43\n")


def test_without_watching_it_is_a_table(there: Running, do: Any) -> None:
    there.become(
        rolling(
            having("e0"),
            loading("e1"),
            lacking("e2"),
            failed("e3"),
            sleeping("e4"),
            awaiting("e5"),
            lacking("e6", None, trust="unsynced", phase="Pending", waiting="the rollout is paused"),
            having("e7", gate="closed", phase="Verifying"),
            paused=True,
        )
    )
    assert do("status", "qwen", "--no-watch") == Ran(
        3,
        """\
ENGINE   VERSION   TRUST       PHASE             WAITING FOR
e0       42        verified    Settled           -
e1       41        verified    Draining          draining, waiting for proxy-0.1 (3 in flight)
e2       41        verified    Settled           waiting for its turn
e3       41        uncertain   GivenUp           given up: the engine failed to load the weights: no
e4       41        verified    Settled           asleep, gets them when it is woken
e5       41        verified    AwaitingTrainer   waiting for the transfer of 42
e6       -         unsynced    Pending           pending, the rollout is paused
e7       42        verified    Verifying         verifying
Waiting for rollout to finish: 2 of 8 engines have 42, and it is paused...
""",
        "",
    )


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (
            rolling(having("e0")),
            0,
            "rolloutengine/qwen successfully rolled out: 1 of 1 engines have 42",
        ),
        (
            rolling(failed("e0"), having("e1")),
            1,
            "rolloutengine/qwen is not rolled out: 1 of 2 engines have 42",
        ),
        (
            rolling(),
            0,
            "rolloutengine/qwen successfully rolled out; it has no engines",
        ),
        (
            fleet(pool("qwen", engine("e0"))),
            0,
            "rolloutengine/qwen names no weights; nothing is to be rolled out",
        ),
    ],
)
def test_the_code_says_how_it_is(
    there: Running, do: Any, status: Any, code: int, said: str
) -> None:
    there.become(status)
    result = do("status", "qwen", "--no-watch")
    assert (result.code, result.out.splitlines()[-1]) == (code, said)
    assert do("status", "qwen", "--timeout", "10s").code == code


def test_engines_that_leave_do_not_count(there: Running, do: Any) -> None:
    leaving = lacking("e1", leaving=True, phase="Leaving")
    there.become(rolling(having("e0"), leaving))
    assert "1 of 1 engines" in do("status", "qwen").out


def test_the_time_is_over(there: Running, do: Any) -> None:
    there.become(rolling(loading("e0")))
    result = do("status", "qwen", "--timeout", "200ms")
    assert result.code == 3
    assert "not every engine of rolloutengine/qwen has the weights that are asked for" in result.err


# --- pause, resume, undo --------------------------------------------------------------------------


def test_pausing_and_resuming_are_said_and_done(there: Running, do: Any) -> None:
    for verb in ("pause", "resume"):
        there.fleet.answer = Done(2, message=f"it is {verb}d")
        assert do(verb, "re/qwen") == Ran(0, f"it is {verb}d\n", "")
        wish = there.fleet.rollouts[-1]
        assert (wish.name, wish.verb, wish.to, wish.since) == ("qwen", verb, None, None)


def test_an_undo_names_what_it_takes_back_and_is_followed(
    there: Running, screen: Screen, directory: str
) -> None:
    there.become(rolling(having("e0")))
    weights = Weights(version="41", source=SourceKind.DISK, path="/ckpt/41")
    there.fleet.answer = Done(3, message="qwen is to have 41 again", target=weights)
    undo = Beside(command, "undo", "qwen", "-f", directory)
    screen.until("the operator is reading it")
    there.become(rolling(loading("e0"), to=target("41"), generation=3))
    screen.until("0 of 1 engines have 41...")
    there.become(rolling(having("e0", "41"), to=target("41"), generation=3))

    assert undo.end() == 0
    assert screen.read().out.startswith("qwen is to have 41 again\n")
    (wish,) = there.fleet.rollouts
    assert (wish.name, wish.verb, wish.to, wish.since) == ("qwen", "undo", None, "qwen-42")


def test_an_undo_to_a_version(there: Running, do: Any) -> None:
    there.fleet.answer = Done(3, message="so")
    assert do("undo", "qwen", "--to", "7", "--no-wait") == Ran(0, "so\n", "")
    assert do("undo", "qwen", "--to", "7", "--no-wait", "-q").out == ""
    assert (there.fleet.rollouts[0].to, there.fleet.rollouts[0].since) == ("7", None)


def test_what_is_refused_ends_with_the_operators_words(there: Running, do: Any) -> None:
    there.fleet.answer = Refused("of qwen no weights before are known")
    assert do("undo", "qwen") == Ran(1, "", "steersman x: of qwen no weights before are known\n")


@pytest.mark.parametrize("verb", ["status", "pause", "resume", "undo"])
def test_what_is_not_there_is_told_as_everywhere(there: Running, do: Any, verb: str) -> None:
    there.fleet.answer = NoSuch("no")
    assert do(verb, "quen") == Ran(
        1, "", 'Error: rolloutengine "quen" not found; did you mean qwen?\n'
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "argument VERB: "),
        (["stop", "qwen"], "invalid choice: 'stop'"),
        (["status"], "required: NAME"),
        (["undo", "qwen", "tiny"], "name one RolloutEngine, as in `rollout undo qwen`"),
    ],
)
def test_wrong_usage(do: Any, arguments: list[str], said: str) -> None:
    result = do(*arguments)
    assert result.code == 2
    assert said in result.err
