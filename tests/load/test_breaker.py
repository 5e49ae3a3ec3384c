"""One breaker on a clock that stands still: what opens it, what closes it, what it does not hear."""

import pytest

from steersman.clock import FakeClock
from steersman.settings import BreakerSettings
from steersman_proxy.load.breaker import Breaker, BreakerState, Cooldowns, Judgement
from steersman_proxy.load.inflight import EngineLoad, Guard

SUCCESS, FAILURE, NEUTRAL = Judgement.SUCCESS, Judgement.FAILURE, Judgement.NEUTRAL
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Bench:
    """A breaker with its time."""

    def __init__(self, *, failures: int = 5, cooldown: float = 30.0) -> None:
        self.clock = FakeClock()
        self.cooldowns = Cooldowns(self.clock)
        settings = BreakerSettings(failures=failures, cooldown=cooldown)
        self.breaker = Breaker(self.cooldowns, settings=settings)
        self.changes: list[tuple[BreakerState, bool]] = []
        self.breaker.on_change = lambda before: self.changes.append((before, self.breaker.blocked))

    def end(self, *judgements: Judgement) -> None:
        """Requests one after the other."""
        for judgement in judgements:
            self.breaker.record(self.breaker.admit(), judgement)

    def open(self) -> None:
        self.end(*[FAILURE] * self.breaker.settings.failures)
        assert self.breaker.state is OPEN

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cooldowns.expire()

    def half_open(self) -> None:
        self.open()
        self.wait(30)
        assert self.breaker.state is HALF_OPEN


def test_failures_in_a_row_open_it_until_the_cooldown_is_over() -> None:
    bench = Bench()
    bench.end(FAILURE, FAILURE, FAILURE, FAILURE)
    assert (bench.breaker.state, bench.breaker.blocked) == (CLOSED, False)

    bench.end(FAILURE)

    assert (bench.breaker.state, bench.breaker.blocked) == (OPEN, True)
    assert bench.breaker.wait == 30
    bench.wait(29.999)
    assert bench.breaker.blocked
    bench.wait(0.001)
    assert (bench.breaker.state, bench.breaker.blocked) == (HALF_OPEN, False)
    assert bench.cooldowns.next_due is None


def test_a_success_between_begins_the_count_anew() -> None:
    bench = Bench()
    bench.end(*[FAILURE] * 4, SUCCESS, *[FAILURE] * 4)
    assert bench.breaker.state is CLOSED


def test_what_is_neutral_neither_counts_nor_interrupts_the_count() -> None:
    bench = Bench()
    bench.end(*[NEUTRAL] * 100)
    assert bench.breaker.state is CLOSED
    bench.end(FAILURE, NEUTRAL, FAILURE, NEUTRAL, FAILURE, NEUTRAL, FAILURE, NEUTRAL, FAILURE)
    assert bench.breaker.state is OPEN


@pytest.mark.parametrize(
    ("judgement", "after"), [(SUCCESS, CLOSED), (FAILURE, OPEN), (NEUTRAL, HALF_OPEN)]
)
def test_the_probe_decides(judgement: Judgement, after: BreakerState) -> None:
    bench = Bench()
    bench.half_open()
    probe = bench.breaker.admit()
    assert bench.breaker.probing

    bench.breaker.record(probe, judgement)

    assert bench.breaker.state is after
    assert bench.breaker.blocked is (after is OPEN)
    assert bench.breaker.wait == (30 if after is OPEN else 0)


def test_after_a_probe_that_succeeded_the_count_begins_at_zero() -> None:
    bench = Bench()
    bench.half_open()
    bench.end(SUCCESS, FAILURE, FAILURE, FAILURE, FAILURE)
    assert bench.breaker.state is CLOSED
    bench.end(FAILURE)
    assert bench.breaker.state is OPEN


@pytest.mark.parametrize("late", list(Judgement))
def test_what_was_admitted_before_it_opened_changes_nothing_any_more(late: Judgement) -> None:
    bench = Bench()
    early = [bench.breaker.admit() for _ in range(8)]
    bench.open()

    bench.breaker.record(early.pop(), late)
    assert (bench.breaker.state, bench.breaker.wait) == (OPEN, 30)

    bench.wait(30)
    bench.breaker.record(early.pop(), late)
    assert (bench.breaker.state, bench.breaker.blocked) == (HALF_OPEN, False)

    probe = bench.breaker.admit()
    bench.breaker.record(early.pop(), late)
    assert bench.breaker.probing

    bench.breaker.record(probe, SUCCESS)
    for generation in early:
        bench.breaker.record(generation, late)
    assert bench.breaker.state is CLOSED
    assert bench.breaker.failures == 0
    assert sum(bench.breaker.outcomes.values()) == 8 + 5 + 1


def test_of_many_that_fail_at_once_one_cooldown_begins() -> None:
    bench = Bench()
    running = [bench.breaker.admit() for _ in range(100)]
    for generation in running:
        bench.breaker.record(generation, FAILURE)
        bench.clock.advance(0.1)
    assert bench.breaker.transitions == {(CLOSED, OPEN): 1}
    assert bench.cooldowns.next_due == bench.breaker.due


def test_other_settings_hold_from_now_on_and_off_closes() -> None:
    bench = Bench()
    bench.open()
    bench.breaker.configure(BreakerSettings(failures=1, cooldown=1))
    assert bench.breaker.wait == 30

    bench.breaker.configure(BreakerSettings(enabled=False))

    assert (bench.breaker.state, bench.breaker.blocked) == (CLOSED, False)
    bench.end(*[FAILURE] * 100)
    assert bench.breaker.state is CLOSED
    bench.wait(30)  # the cooldown of old means nothing
    assert bench.breaker.state is CLOSED
    bench.breaker.configure(BreakerSettings(failures=1, cooldown=1))
    bench.end(FAILURE)
    assert bench.breaker.wait == 1


def test_cooldowns_end_in_their_own_order() -> None:
    clock = FakeClock()
    cooldowns = Cooldowns(clock)
    made = [
        Breaker(cooldowns, settings=BreakerSettings(failures=1, cooldown=seconds))
        for seconds in (30.0, 10.0, 20.0)
    ]
    for breaker in made:
        breaker.record(breaker.admit(), FAILURE)
    seen = []
    for _ in range(3):
        assert cooldowns.next_due is not None
        clock.advance(cooldowns.next_due - clock.now())
        cooldowns.expire()
        seen.append([breaker.state is HALF_OPEN for breaker in made])
    assert seen == [[False, True, False], [False, True, True], [True, True, True]]
    assert cooldowns.next_due is None


def test_every_change_is_told_with_the_state_before() -> None:
    bench = Bench()
    bench.half_open()
    bench.end(NEUTRAL, SUCCESS)
    assert bench.changes == [
        (CLOSED, True),
        (OPEN, False),
        (HALF_OPEN, True),
        (HALF_OPEN, False),
        (HALF_OPEN, True),
        (HALF_OPEN, False),
    ]
    assert bench.breaker.transitions == {
        (CLOSED, OPEN): 1,
        (OPEN, HALF_OPEN): 1,
        (HALF_OPEN, CLOSED): 1,
    }


def test_a_guard_tells_one_end_and_gives_back_one_count_whatever_is_called_how_often() -> None:
    bench = Bench(failures=2)
    load = EngineLoad()
    load.requests = 1
    guard = Guard(load, bench.breaker, bench.breaker.admit())
    guard.judge(FAILURE)
    guard.judge(FAILURE)
    guard.release()
    guard.judge(FAILURE)
    guard.release()
    assert (bench.breaker.failures, load.requests) == (1, 0)


def test_a_probe_whose_guard_is_only_released_frees_its_slot() -> None:
    bench = Bench()
    bench.half_open()
    load = EngineLoad()
    load.requests = 1
    guard = Guard(load, bench.breaker, bench.breaker.admit())
    assert guard.probe

    guard.release()

    assert not guard.probe
    assert (bench.breaker.state, bench.breaker.blocked) == (HALF_OPEN, False)


def test_a_listener_that_raises_keeps_neither_count_nor_slot() -> None:
    bench = Bench()
    bench.half_open()
    freed: list[int] = []
    load = EngineLoad(on_release=lambda: freed.append(load.requests))
    load.requests = 1
    guard = Guard(load, bench.breaker, bench.breaker.admit())

    def broken(before: BreakerState) -> None:
        raise RuntimeError("a fault of the listener")

    bench.breaker.on_change = broken
    with pytest.raises(RuntimeError):
        guard.release()
    guard.release()
    assert (freed, bench.breaker.blocked) == ([0], False)
