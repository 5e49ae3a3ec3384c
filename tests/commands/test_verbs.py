"""``steersman pause``, ``resume``, ``sleep`` and ``wake`` against the real API."""

import signal
import threading
from typing import Any

import pytest

from steersman_operator.commands import verbs
from steersman_operator.commands.verbs import VerbCommand
from tests.api.support import (
    Done,
    NoSuch,
    Refused,
    Running,
    draining,
    engine,
    fleet,
    given_up,
    paused,
    pool,
)
from tests.commands.support import Beside, Ran, Screen, ran

ALL = {"pause": verbs.pause, "resume": verbs.resume, "sleep": verbs.sleep, "wake": verbs.wake}


def wanted(*engines: dict[str, Any], generation: int = 2, **more: Any) -> dict[str, Any]:
    """The fleet once the operator has taken up the wish to pause."""
    return fleet(pool("qwen", *engines, state="Paused", generation=generation, **more))


@pytest.fixture
def do(there: Running, capsys: pytest.CaptureFixture[str]) -> Any:
    there.fleet.answer = Done(2, message="qwen is to be Paused now")

    def do(command: VerbCommand, *arguments: str) -> Ran:
        return ran(capsys, command, *arguments, "-f", there.layout.directory)

    return do


@pytest.mark.parametrize(
    ("verb", "state", "done"),
    [
        ("pause", "paused", "paused"),
        ("resume", "active", "resumed"),
        ("sleep", "asleep", "asleep"),
        ("wake", "active", "awake"),
    ],
)
def test_each_verb_asks_for_its_state(
    there: Running, do: Any, verb: str, state: str, done: str
) -> None:
    gate = "open" if state == "active" else "closed"
    there.become(
        fleet(
            pool(
                "qwen",
                engine("e0", control=state, desired=state, gate=gate),
                state=state.capitalize(),
                generation=2,
            )
        )
    )

    there.fleet.answer = Done(2, message=f"qwen is to be {state.capitalize()} now")

    assert do(ALL[verb], "qwen") == Ran(
        0, f"qwen is to be {state.capitalize()} now\nrolloutengine/qwen {done}\n", ""
    )
    (edit,) = there.fleet.edits
    assert (edit.kind, edit.name, edit.verb, edit.engine) == ("RolloutEngine", "qwen", verb, None)


def test_progress_is_told_until_it_is_done(there: Running, screen: Screen, directory: str) -> None:
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("the operator is reading it")
    there.become(wanted(draining("e0"), draining("e1", "waiting for proxy-1.2 (1 in flight)")))
    screen.until("proxy-1.2 (1 in flight)")
    there.become(wanted(draining("e0", "waiting for proxy-0.1 (1 in flight)"), paused("e1")))
    screen.until("qwen/e1: paused")
    executing = draining("e0", "waiting for the engine to answer: pause")
    there.become(wanted(executing | {"phase": "Executing"}, paused("e1")))
    screen.until("executing")
    there.become(wanted(paused("e0"), paused("e1")))

    assert pausing.end() == 0
    assert screen.read().out == (
        """\
rolloutengine/qwen is to be Paused now
qwen: the operator is reading it
qwen/e0: draining, waiting for proxy-0.1 (3 in flight)
qwen/e1: draining, waiting for proxy-1.2 (1 in flight)
qwen/e0: draining, waiting for proxy-0.1 (1 in flight)
qwen/e1: paused
qwen/e0: executing, waiting for the engine to answer: pause
rolloutengine/qwen paused
"""
    )
    assert screen.err == ""


def test_a_state_older_than_the_wish_is_not_believed(
    there: Running, screen: Screen, directory: str
) -> None:
    """It was paused before somebody resumed it, and the operator has not read our wish yet."""
    there.fleet.answer = Done(8)
    there.become(wanted(paused("e0"), generation=7))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("the operator is reading it")
    there.become(wanted(draining("e0"), generation=8))
    screen.until("draining")
    assert "rolloutengine/qwen paused" not in screen.read().out
    there.become(wanted(paused("e0"), generation=8))

    assert pausing.end() == 0


def test_a_later_wish_for_the_same_is_as_good(there: Running, do: Any) -> None:
    there.become(wanted(paused("e0"), generation=9))

    assert do(verbs.pause, "qwen").code == 0


def test_one_engine(there: Running, do: Any) -> None:
    there.become(fleet(pool("qwen", paused("e0"), engine("e1"), generation=2)))

    for name in ("e0", "qwen/e0", "engine/qwen/e0"):
        assert do(verbs.pause, "qwen", "--engine", name).out.endswith("\nengine/qwen/e0 paused\n")
        assert there.fleet.edits[-1].engine == "e0"
    assert there.fleet.edits[0].engine == "e0"


def test_engines_with_a_state_of_their_own_are_not_waited_for(there: Running, do: Any) -> None:
    there.fleet.answer = Done(2, message="e1 keeps its own state, Active")
    there.become(
        wanted(paused("e0"), engine("e1"), overrides=[{"engine": "e1", "state": "Active"}])
    )

    assert do(verbs.pause, "qwen").out == (
        "e1 keeps its own state, Active\nrolloutengine/qwen paused\n"
    )


def test_engines_that_leave_are_not_waited_for(there: Running, do: Any) -> None:
    leaving = engine("e1", desired="paused", leaving=True, phase="Leaving")
    there.become(wanted(paused("e0"), leaving))

    assert do(verbs.pause, "qwen").code == 0


def test_a_pool_without_engines_is_done_at_once(there: Running, do: Any) -> None:
    there.become(wanted())

    assert do(verbs.pause, "qwen").out.endswith("\nrolloutengine/qwen paused; it has no engines\n")


def test_without_waiting(there: Running, do: Any) -> None:
    assert do(verbs.pause, "qwen", "--no-wait") == Ran(0, "qwen is to be Paused now\n", "")
    there.fleet.answer = Done(2)
    assert do(verbs.pause, "qwen", "--no-wait").out == "rolloutengine/qwen is to be Paused now\n"


def test_quiet(there: Running, do: Any) -> None:
    there.fleet.answer = Done(2, message="e1 keeps its own state")
    there.become(wanted(paused("e0")))

    assert do(verbs.pause, "qwen", "-q") == Ran(0, "", "")
    assert do(verbs.pause, "qwen", "-q", "--no-wait") == Ran(0, "", "")


def test_the_kind_may_be_named(there: Running, do: Any) -> None:
    there.become(wanted(paused("e0")))

    assert do(verbs.pause, "re/qwen").out.endswith("\nrolloutengine/qwen paused\n")


@pytest.mark.parametrize(
    "error",
    [
        Refused("qwen is asleep; wake it first"),
        NoSuch("there is none, although there is one by now"),
    ],
)
def test_what_is_refused_ends_with_the_operators_words(
    there: Running, do: Any, error: Exception
) -> None:
    there.fleet.answer = error

    assert do(verbs.pause, "qwen") == Ran(1, "", f"steersman x: {error}\n")


def test_what_is_not_there_is_told_as_everywhere(there: Running, do: Any) -> None:
    there.fleet.answer = NoSuch("no")

    assert do(verbs.pause, "quen") == Ran(
        1, "", 'Error: rolloutengine "quen" not found; did you mean qwen?\n'
    )
    assert do(verbs.pause, "qwen", "--engine", "e9") == Ran(
        1, "", 'Error: engine "e9" not found; there are qwen/e0, qwen/e1\n'
    )


def test_the_kind_may_be_a_word_of_its_own(there: Running, do: Any) -> None:
    there.become(wanted(paused("e0")))

    for words in (["re", "qwen"], ["rolloutengine", "qwen"], ["RE/qwen"]):
        assert do(verbs.pause, *words).out.endswith("\nrolloutengine/qwen paused\n")
        assert there.fleet.edits[-1].name == "qwen"
    do(verbs.pause, "re", "--no-wait")
    assert there.fleet.edits[-1].name == "re", "a name can be any word"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["engine", "qwen/e0"], "for one engine write `pause qwen --engine e0`"),
        (["engine/qwen/e0"], "for one engine write `pause qwen --engine e0`"),
        (["qwen/e0"], "for one engine write `pause qwen --engine e0`"),
        (["qwen", "tiny"], "name one RolloutEngine, as in `pause qwen`"),
        (["proxy", "x"], "name one RolloutEngine, as in `pause qwen`"),
    ],
)
def test_what_else_is_named_is_told_how_to_write(
    there: Running, do: Any, words: list[str], hint: str
) -> None:
    result = do(verbs.pause, *words)

    assert result.code == 2
    assert f"{' '.join(words)!r}: {hint}" in result.err
    assert not there.fleet.edits


def test_an_engine_given_by_its_address_is_told_of_by_its_name(there: Running, do: Any) -> None:
    there.become(fleet(pool("qwen", paused("e0"), engine("e1"), generation=2)))

    for address in ("127.0.0.1:31000", "http://127.0.0.1:31000", "qwen/127.0.0.1:31000"):
        done = do(verbs.pause, "qwen", "--engine", address)
        assert done.out.endswith("\nengine/qwen/e0 paused\n")


def test_what_is_resumed_but_takes_nothing_says_so(there: Running, do: Any) -> None:
    why = "takes no requests until it shows version 7"
    unsynced = engine("e0", version=None, trust="unsynced", withheld=why)
    there.become(fleet(pool("qwen", unsynced, engine("e1"), generation=2)))

    assert do(verbs.resume, "qwen").out.endswith(
        f"\nqwen/e0: active, but {why}\nrolloutengine/qwen resumed\n"
    )
    there.become(
        fleet(pool("qwen", *(unsynced | {"name": f"e{i}"} for i in range(40)), generation=2))
    )
    assert do(verbs.resume, "qwen").out.endswith(
        f"\nrolloutengine/qwen: qwen/e0 and 39 more: active, but {why}\n"
        "rolloutengine/qwen resumed\n"
    )


def test_what_was_given_up_is_told_once_all_have_ended(
    there: Running, screen: Screen, directory: str
) -> None:
    why = "not drained within 600 s: waiting for proxy-0.1 (3 in flight)"
    there.become(wanted(given_up("e0", why), draining("e1")))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("qwen/e1: draining")
    there.become(wanted(given_up("e0", why), paused("e1")))

    assert pausing.end() == 1
    assert screen.read().err == (
        f"Error: rolloutengine/qwen is not paused\n  qwen/e0: given up: {why}\n"
        "It is not tried again by itself; `steersman resume qwen` takes the wish back.\n"
    )
    assert f"qwen/e0: given up: {why}\n" in screen.out


def test_on_the_way_back_from_what_failed(there: Running, screen: Screen, directory: str) -> None:
    back = engine(
        "e0",
        desired="asleep",
        gate="closed",
        phase="Executing",
        becoming="active",
        problem="the engine refused to sleep: no",
        waiting="waiting for the engine to answer: resume",
    )
    there.fleet.answer = Done(2)
    there.become(fleet(pool("qwen", back, state="Asleep", generation=2)))
    sleeping = Beside(verbs.sleep, "qwen", "-f", directory)
    screen.until(
        "qwen/e0: going back to active, executing, the engine refused to sleep: no, "
        "waiting for the engine to answer: resume\n"
    )
    failed = engine("e0", desired="asleep", phase="GivenUp", problem="the engine refused to sleep")
    there.become(fleet(pool("qwen", failed, state="Asleep", generation=2)))

    assert sleeping.end() == 1
    assert "qwen/e0: given up: the engine refused to sleep\n" in screen.read().err


def external() -> dict[str, Any]:
    why = "found paused, was put active; left alone, as drift is Observe"
    return engine(
        "e0", control="paused", gate="closed", phase="External", problem=why, external=True
    )


def test_what_somebody_else_has_paused_is_not_waited_for_in_vain(there: Running, do: Any) -> None:
    there.become(fleet(pool("qwen", external(), generation=2)))

    result = do(verbs.resume, "qwen")

    assert result.code == 1
    assert result.err == (
        "Error: rolloutengine/qwen is not resumed\n"
        "  qwen/e0: found paused, was put active; left alone, as drift is Observe; "
        "pause and resume it to take it back\n"
    )


def test_what_is_put_back_is_waited_for(there: Running, screen: Screen, directory: str) -> None:
    there.become(fleet(pool("qwen", external(), generation=2, drift="Enforce")))
    resuming = Beside(verbs.resume, "qwen", "-f", directory)
    screen.until("qwen/e0: found paused")
    there.become(fleet(pool("qwen", engine("e0"), generation=2)))

    assert resuming.end() == 0


def test_an_engine_is_not_resumed_before_it_is_open(
    there: Running, screen: Screen, directory: str
) -> None:
    there.become(fleet(pool("qwen", engine("e0", gate="closed"), generation=2)))
    resuming = Beside(verbs.resume, "qwen", "-f", directory)
    screen.until("qwen/e0: active")
    there.become(fleet(pool("qwen", engine("e0"), generation=2)))

    assert resuming.end() == 0


def test_somebody_wants_something_else_meanwhile(
    there: Running, screen: Screen, directory: str
) -> None:
    there.become(wanted(draining("e0")))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("draining")
    there.become(fleet(pool("qwen", engine("e0"), generation=3)))

    assert pausing.end() == 1
    assert screen.read().err == (
        "Error: rolloutengine/qwen is not to be Paused any more: somebody has asked for Active\n"
    )


def test_the_engine_or_all_of_it_goes_meanwhile(
    there: Running, screen: Screen, directory: str
) -> None:
    there.become(fleet(pool("qwen", draining("e0"), generation=2)))
    pausing = Beside(verbs.pause, "qwen", "--engine", "e0", "-f", directory)
    screen.until("draining")
    there.become(fleet(pool("qwen", engine("e1"), generation=3)))
    assert pausing.end() == 1
    assert 'engine "e0" not found' in screen.read().err

    there.become(wanted(draining("e0")))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("qwen/e0: draining")
    there.become(fleet())
    assert pausing.end() == 1
    assert "Error: rolloutengine/qwen is gone\n" in screen.read().err


def test_it_takes_too_long(there: Running, do: Any) -> None:
    there.become(wanted(draining("e0"), paused("e1")))

    result = do(verbs.pause, "qwen", "--timeout", "300ms")

    assert result.code == 3
    assert result.err == (
        "Error: rolloutengine/qwen is not paused after 0.3 s\n"
        "  qwen/e0: draining, waiting for proxy-0.1 (3 in flight)\n"
        "  qwen/e1: paused\n"
        "The operation goes on; see `steersman describe re qwen`.\n"
    )


def test_interrupted(there: Running, do: Any) -> None:
    there.become(wanted(draining("e0")))
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        while not there.api or not there.api.watchers:
            threading.Event().wait(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    result = do(verbs.pause, "qwen")
    pressing.join()

    assert result.code == 130
    assert "The operation goes on; see `steersman describe re qwen`.\n" in result.err


def test_the_operator_is_restarted_meanwhile(
    there: Running, screen: Screen, directory: str
) -> None:
    there.become(wanted(draining("e0")))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("draining")
    there.leave()
    screen.until("the operator is gone")
    unpublished = fleet(
        pool("qwen", engine("e0", phase="Unknown", desired="paused"), state="Paused")
    )
    unpublished["pools"][0]["generation"] = 2
    unpublished["operator"]["published"] = False
    there.fleet.now = unpublished
    there.serve()
    screen.until("not seen yet")
    there.become(wanted(paused("e0")))

    assert pausing.end() == 0
    assert screen.read().out.endswith("rolloutengine/qwen paused\n")


def test_a_silent_proxy_is_told_once_and_not_each_second(
    there: Running, screen: Screen, directory: str
) -> None:
    said = "waiting for y (unreachable, silent for {} s)"
    there.become(wanted(draining("e0", said.format(4)), draining("e1")))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("silent for 4 s")
    there.become(wanted(draining("e0", said.format(5)), paused("e1")))
    screen.until("qwen/e1: paused")
    there.become(wanted(paused("e0"), paused("e1")))

    assert pausing.end() == 0
    assert "silent for 5 s" not in screen.read().out


def test_of_many_engines_the_numbers_are_told(
    there: Running, screen: Screen, directory: str
) -> None:
    many = [paused(f"e{i}") for i in range(300)] + [draining(f"e{i}") for i in range(300, 512)]
    there.become(wanted(*many))
    pausing = Beside(verbs.pause, "qwen", "-f", directory)
    screen.until("rolloutengine/qwen: 212 draining, 300 paused of 512\n")
    there.become(wanted(*(paused(f"e{i}") for i in range(512))))

    assert pausing.end() == 0
    assert len(screen.read().out.splitlines()) == 3


@pytest.mark.parametrize("timeout", ["5", "-1s", "soon", ""])
def test_a_bad_duration(do: Any, timeout: str) -> None:
    result = do(verbs.pause, "qwen", f"--timeout={timeout}")

    assert result.code == 2
    assert "is not a duration, such as 500ms, 30s, 10m or 1h" in result.err
