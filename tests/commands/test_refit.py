"""``steersman refit`` and ``publish`` against the real API."""

import os
import pty
import re
import sys
import threading
from typing import Any

import pytest

from steersman_operator.commands import refit as module
from steersman_operator.fleet.spec import SourceKind, Weights
from tests.api.support import Done, NoSuch, Refused, Running, fleet, pool
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
from tests.commands.support import Beside, Ran, Screen, ran, run

DISK = Weights(version="42", source=SourceKind.DISK, path="/ckpt/42")
EXTERNAL = Weights(version="42", source=SourceKind.EXTERNAL)
ASKED = "qwen is to have 42 (Disk /ckpt/42) now"
BOTH = "rolloutengine/qwen successfully rolled out: 2 of 2 engines have 42\n"


@pytest.fixture
def do(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)

    def do(*arguments: str, command: Any = module.refit) -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory)

    return do


def external(*engines: Any, **more: Any) -> Any:
    return rolling(*engines, to=target(source="External", path=""), **more)


# --- what is asked for ----------------------------------------------------------------------------


def test_weights_on_disk_are_asked_for_and_followed(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    refit = Beside(module.refit, "qwen", "--version", "42", "--path", "/ckpt/42", "-f", directory)
    screen.until("the operator is reading it")
    there.become(rolling(loading("e0"), lacking("e1")))
    screen.until("0 of 2")
    there.become(
        rolling(loading("e0", "Executing", "waiting for the engine to load"), lacking("e1"))
    )
    screen.until("executing")
    there.become(rolling(having("e0"), loading("e1")))
    screen.until("1 of 2")
    there.become(rolling(having("e0"), having("e1")))

    assert refit.end() == 0
    assert screen.read().out == (
        f"""\
{ASKED}
qwen: the operator is reading it
qwen/e0: 41, verified, draining, waiting for proxy-0.1 (3 in flight)
qwen/e1: 41, verified, waiting for its turn
Waiting for rollout to finish: 0 of 2 engines have 42...
qwen/e0: 41, verified, executing, waiting for the engine to load
qwen/e0: 42, verified
qwen/e1: 41, verified, draining, waiting for proxy-0.1 (3 in flight)
Waiting for rollout to finish: 1 of 2 engines have 42...
qwen/e1: 42, verified
{BOTH}"""
    )
    assert screen.err == ""
    (wish,) = there.fleet.refits
    assert (wish.name, wish.version, wish.path, wish.checksum, wish.nonce) == (
        "qwen",
        "42",
        "/ckpt/42",
        None,
        None,
    )


def test_what_is_there_already_is_said_in_one_line(there: Running, do: Any) -> None:
    there.become(rolling(having("e0"), having("e1")))
    assert do("qwen", "--version", "42") == Ran(0, f"{ASKED}\n{BOTH}", "")


@pytest.mark.parametrize("arguments", [["qwen"], ["re/qwen", "--again"], ["re", "qwen"]])
def test_the_same_once_more_has_a_nonce_of_its_own(
    there: Running, do: Any, arguments: list[str]
) -> None:
    for _ in range(2):
        assert do(*arguments, "--no-wait") == Ran(0, f"{ASKED}\n", "")
    first, second = there.fleet.refits
    assert (first.name, first.version) == ("qwen", None)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+\+00:00", first.nonce)
    assert first.nonce != second.nonce


def test_a_version_can_be_asked_for_once_more(there: Running, do: Any) -> None:
    do("qwen", "--version", "42", "--again", "--checksum", "8c1f", "--no-wait")
    (wish,) = there.fleet.refits
    assert (wish.version, wish.checksum, wish.nonce is None) == ("42", "8c1f", False)


def test_quiet(there: Running, do: Any) -> None:
    there.become(rolling(having("e0")))
    assert do("qwen", "--version", "42", "-q") == Ran(0, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["qwen", "--version", "a b"], "must be visible ASCII without spaces"),
        (["qwen", "--path", "/w"], "--path and --checksum are of a --version; name it, too"),
        (["qwen", "tiny", "--version", "7"], "name one RolloutEngine, as in `refit qwen`"),
        (["engine/qwen/e0", "--version", "7"], "name one RolloutEngine, as in `refit qwen`"),
        (["qwen", "--version", "7", "--timeout", "5"], "'5' is not a duration"),
    ],
)
def test_wrong_usage(there: Running, do: Any, arguments: list[str], said: str) -> None:
    result = do(*arguments)
    assert result.code == 2
    assert said in result.err
    assert not there.fleet.refits


def test_what_is_refused_ends_with_the_operators_words(there: Running, do: Any) -> None:
    there.fleet.answer = Refused("42 of 'q' are other weights already")
    assert do("qwen", "--version", "42") == Ran(
        1, "", "steersman x: 42 of 'q' are other weights already\n"
    )
    there.fleet.answer = NoSuch("no")
    assert do("quen", "--version", "42") == Ran(
        1, "", 'Error: rolloutengine "quen" not found; did you mean qwen?\n'
    )


# --- how it ends ----------------------------------------------------------------------------------


def test_an_account_older_than_the_wish_is_not_believed(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(8, message=ASKED, target=DISK)
    there.become(rolling(having("e0"), generation=7))
    refit = Beside(module.refit, "qwen", "--again", "-f", directory)
    screen.until("the operator is reading it")
    there.become(rolling(loading("e0"), generation=8))
    screen.until("0 of 1")
    there.become(rolling(having("e0"), generation=8))
    assert refit.end() == 0


def test_an_engine_that_has_them_but_is_closed_is_waited_for(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    there.become(rolling(having("e0", gate="closed", phase="Verifying")))
    refit = Beside(module.refit, "qwen", "--version", "42", "-f", directory)
    screen.until("qwen/e0: 42, verified, verifying")
    there.become(rolling(having("e0")))
    assert refit.end() == 0


def test_asleep_engines_get_them_later(there: Running, do: Any) -> None:
    there.become(rolling(having("e0"), sleeping("e1")))
    assert do("qwen", "--version", "42").out.endswith(
        "rolloutengine/qwen successfully rolled out: 1 of 2 engines have 42; 1 asleep, and load it "
        "when they are woken\n"
    )


def test_paused_engines_have_them_while_they_are_closed(there: Running, do: Any) -> None:
    paused = having("e0", control="paused", desired="paused", gate="closed")
    there.become(rolling(paused))
    assert do("qwen", "--version", "42").code == 0


def test_without_engines_it_is_done(there: Running, do: Any) -> None:
    there.become(rolling())
    assert do("qwen", "--version", "42").out.endswith(
        "rolloutengine/qwen successfully rolled out; it has no engines\n"
    )


def test_a_failure_is_told_once_nothing_moves_any_more(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    there.become(rolling(failed("e0"), loading("e1")))
    refit = Beside(module.refit, "qwen", "--version", "42", "-f", directory)
    screen.until("0 of 2")
    there.become(rolling(failed("e0"), having("e1")))

    assert refit.end() == 1
    assert screen.read().err == (
        "Error: rolloutengine/qwen is not rolled out: 1 of 2 engines have 42\n"
        "  qwen/e0: given up: the engine failed to load the weights: no\n"
        "It is not tried again by itself; `steersman refit qwen --again` does, and "
        "`steersman rollout undo qwen` goes back.\n"
    )


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (
            lacking("e0", gate="closed", trust="uncertain"),
            "its weights are uncertain, it stays closed",
        ),
        (
            lacking("e0", phase="External", problem="found paused"),
            "found paused; pause and resume it to take it back",
        ),
    ],
)
def test_what_nobody_will_load_is_not_waited_for(
    there: Running, do: Any, engine: Any, why: str
) -> None:
    there.become(rolling(engine))
    result = do("qwen", "--version", "42")
    assert result.code == 1
    assert f"  qwen/e0: {why}\n" in result.err


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            rolling(loading("e0"), to=target("43")),
            "rolloutengine/qwen is not to have 42 any more: somebody has asked for 43",
        ),
        (
            rolling(loading("e0"), to=target(nonce="n")),
            "somebody has asked rolloutengine/qwen to load 42 once more",
        ),
        (
            fleet(pool("qwen", loading("e0"), generation=3)),
            "rolloutengine/qwen is not to have 42 any more",
        ),
        (fleet(), "rolloutengine/qwen is gone"),
    ],
)
def test_what_somebody_else_wants_meanwhile(there: Running, do: Any, after: Any, said: str) -> None:
    there.become(after)
    result = do("qwen", "--version", "42")
    assert (result.code, result.err) == (1, f"Error: {said}\n")


def test_the_time_is_over(there: Running, do: Any) -> None:
    there.become(rolling(loading("e0"), paused=True))
    result = do("qwen", "--version", "42", "--timeout", "200ms")
    assert result.code == 3
    assert (
        "Waiting for rollout to finish: 0 of 1 engines have 42, and it is paused...\n" in result.out
    )
    assert result.err == (
        "Error: not every engine of rolloutengine/qwen has 42 after 0.2 s\n"
        "  qwen/e0: 41, verified, draining, waiting for proxy-0.1 (3 in flight)\n"
        "The rollout goes on; see `steersman rollout status qwen`.\n"
    )


def test_of_many_engines_the_numbers_are_told(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    many = [having(f"e{i}") for i in range(300)]
    there.become(
        rolling(
            *many, loading("e300"), sleeping("e301"), *(lacking(f"e{i}") for i in range(302, 512))
        )
    )
    refit = Beside(module.refit, "qwen", "--version", "42", "-f", directory)
    screen.until(
        "rolloutengine/qwen: 1 asleep, 300 done, 1 draining, 210 waiting of 512\n"
        "Waiting for rollout to finish: 300 of 512 engines have 42...\n"
    )
    there.become(rolling(*(having(f"e{i}") for i in range(512))))
    assert refit.end() == 0


def test_the_operator_is_restarted_meanwhile(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    there.become(rolling(loading("e0")))
    refit = Beside(module.refit, "qwen", "--version", "42", "-f", directory)
    screen.until("0 of 1")
    there.leave()
    screen.until("waiting for it to come back")
    there.become(rolling(having("e0")))
    there.serve()
    assert refit.end() == 0


# --- a trainer ------------------------------------------------------------------------------------


def test_a_trainer_is_told_when_it_may_transfer(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2, message="qwen is to have 42 (External) now", target=EXTERNAL)
    left = "the trainer may transfer 42; it has {} s left to commit it"
    ready = loading("e0", "AwaitingTrainer", left.format(1800))
    there.become(external(ready, loading("e1")))
    refit = Beside(module.refit, "qwen", "--version", "42", "-f", directory)
    screen.until("Waiting for rollout to finish: 1 of 2 engines wait for the transfer of 42...\n")
    for seconds in (1799, 1798):
        ready = loading("e0", "AwaitingTrainer", left.format(seconds))
        there.become(external(ready, loading("e1", waiting=f"so far: {seconds}")))
        screen.until(f"so far: {seconds}")
    there.become(external(awaiting("e0"), awaiting("e1")))

    assert refit.end() == 0
    assert "1800 s left" in screen.read().out and "1799 s left" not in screen.out
    assert screen.read().out.endswith(
        "qwen/e1: 41, verified, waiting for the transfer of 42\n"
        "rolloutengine/qwen is ready for 42: transfer the weights, then `steersman publish qwen "
        "--version 42`\n"
    )


def test_who_has_them_needs_no_transfer(there: Running, do: Any) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=EXTERNAL)
    there.become(external(having("e0"), having("e1")))
    assert do("qwen", "--version", "42").out.endswith(BOTH)
    there.become(external(having("e0"), sleeping("e1")))
    assert "1 of 2 engines have 42; 1 asleep" in do("qwen", "--version", "42").out


def test_an_engine_that_cannot_be_made_ready_is_told(there: Running, do: Any) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=EXTERNAL)
    there.become(external(awaiting("e0"), failed("e1", "not drained within 600 s")))
    result = do("qwen", "--version", "42")
    assert result.code == 1
    assert "  qwen/e1: given up: not drained within 600 s\n" in result.err


def test_what_is_published_is_followed_until_it_serves(
    there: Running, screen: Screen, directory: str
) -> None:
    there.fleet.answer = Done(2)
    there.become(external(awaiting("e0"), awaiting("e1")))
    publish = Beside(module.publish, "qwen", "--version", "42", "-f", directory)
    screen.until("0 of 2 engines have 42")
    there.become(external(having("e0"), loading("e1", "Verifying", "looking")))
    screen.until("1 of 2")
    there.become(external(having("e0"), having("e1")))

    assert publish.end() == 0
    assert screen.read().out.startswith("42 of qwen is published\n")
    assert screen.out.endswith(BOTH)
    assert there.fleet.published == [("qwen", "42")]


def test_publishing_without_waiting(there: Running, do: Any) -> None:
    there.become(external(awaiting("e0")))
    assert do("re/qwen", "--version", "42", "--no-wait", command=module.publish) == Ran(
        0, "42 of qwen is published\n", ""
    )
    assert do("qwen", "--version", "42", "--no-wait", "-q", command=module.publish).out == ""


def test_what_nobody_waits_for_cannot_be_published(there: Running, do: Any) -> None:
    there.fleet.answer = Refused("no engine of qwen waits for 43")
    assert do("qwen", "--version", "43", command=module.publish) == Ran(
        1, "", "steersman x: no engine of qwen waits for 43\n"
    )
    there.fleet.answer = NoSuch("no")
    assert "did you mean qwen?" in do("quen", "--version", "43", command=module.publish).err
    assert do("qwen", command=module.publish).code == 2


# --- a terminal -----------------------------------------------------------------------------------


def test_in_a_terminal_a_bar_shows_how_far_it_is(
    there: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.fleet.answer = Done(2, message=ASKED, target=DISK)
    there.become(rolling(having("e0"), loading("e1")))
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = b""
    moved = False
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb", buffering=0) as reader:
        monkeypatch.setattr(sys, "stdout", terminal)
        ended: list[int] = []

        def work() -> None:
            directory = str(there.layout.directory)
            ended.append(run(module.refit, "qwen", "--version", "42", "-f", directory))
            print("the end", file=terminal, flush=True)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while b"the end" not in shown:
            shown += reader.read(4096)
            if b"1/2" in shown and not moved:
                moved = True
                there.become(rolling(having("e0"), having("e1")))
        thread.join(20)
    assert ended == [0]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "Waiting for rollout to finish: 1 of 2 engines have 42..." in text
    assert "qwen/e1: 41, verified, draining, waiting for proxy-0.1 (3 in flight)\r\n" in text
    assert BOTH.replace("\n", "\r\n") in text
    last = shown.rpartition(b"2/2")[2]
    assert b"\x1b[2K" in last, "the bar does not stay"
    assert last.endswith(b"the end\r\n")
