"""When engines are looked at: at rest they take turns, and what is awaited does not wait for one."""

from itertools import pairwise

import pytest

from steersman.engine import Control
from steersman_operator.fleet.commands import Look
from steersman_operator.fleet.events import SpecChanged, Tick
from steersman_operator.fleet.state import Phase, Timing
from tests.fleet.support import Bench, Truth, engine_spec

A_MOMENT = 0.02


class Crowd(Bench):
    """Engines by number, that answer a look a moment later."""

    def __init__(self, count: int, *, timing: Timing | None = None) -> None:
        names = [f"e{i:03}" for i in range(count)]
        super().__init__(
            "",
            proxies="x",
            truths={name: Truth() for name in names},
            timing=timing or Timing(),
            started=False,
        )
        self.asked: list[tuple[float, str]] = []
        self.elect(1)
        self.name(names)
        self.require()
        self.join("x")

    def name(self, names: list[str]) -> None:
        """Have these engines managed."""
        for name in names:
            self.truths.setdefault(name, Truth())
        self.want(engines=tuple(map(engine_spec, names)))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += A_MOMENT
            for command in self.do(Tick(now=self.now)):
                if isinstance(command, Look):
                    self.asked.append((self.now, command.engine))
            for command, _ in list(self.looks):
                if command.engine not in self.quiet:
                    self.look(command.engine)

    def times(self, name: str) -> list[float]:
        return [time for time, asked in self.asked if asked == name]


@pytest.mark.parametrize(("count", "interval"), [(1, 2.0), (40, 2.0), (512, 12.8)])
def test_engines_at_rest_are_looked_at_in_turn_within_the_budget(
    count: int, interval: float
) -> None:
    crowd = Crowd(count)
    crowd.pass_time(60)

    assert crowd.state.published
    most = max(
        sum(start <= time < start + 1 for time, _ in crowd.asked) for start in range(100, 159)
    )
    assert most <= 42
    for name in crowd.truths:
        times = crowd.times(name)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert gaps and all(interval - 0.01 <= gap <= interval + 0.1 for gap in gaps), name
    # Not all at once either: few in any one moment.
    moments = [time for time, _ in crowd.asked]
    assert max(moments.count(moment) for moment in set(moments)) <= 2


def test_the_budget_can_be_chosen() -> None:
    crowd = Crowd(20, timing=Timing(looks_per_second=5.0))
    crowd.pass_time(20)

    assert len(crowd.asked) <= 5 * 20
    assert {name for _, name in crowd.asked} == crowd.truths.keys()


def test_a_new_leader_and_a_new_engine_do_not_wait_for_a_turn() -> None:
    crowd = Crowd(512)
    assert len(crowd.looks) == 512
    crowd.pass_time(1)
    crowd.name([*crowd.truths, "new"])

    assert [look.engine for look, _ in crowd.looks] == ["new"]


def test_an_operation_does_not_wait_for_a_turn_and_takes_none_from_others() -> None:
    crowd = Crowd(200)
    crowd.pass_time(10)
    for _ in range(3):
        for state in (Control.PAUSED, Control.ACTIVE):
            start = crowd.now
            crowd.want(overrides={"e007": state})
            assert crowd.run(5, lambda state=state: crowd.settled(state, "e007"))  # type: ignore[misc]
            assert crowd.now - start < 5
    crowd.asked.clear()
    crowd.pass_time(15)

    assert all(crowd.times(name) for name in crowd.truths)


def test_an_engine_that_has_just_not_answered_does_not_wait_for_a_turn() -> None:
    crowd = Crowd(512)
    crowd.pass_time(14)
    crowd.truths["e001"].answers = False
    crowd.pass_time(12.8 + 2 * crowd.timing.look_every + 0.2)

    assert not crowd.engine("e001").reachable
    crowd.asked.clear()
    crowd.pass_time(60)
    assert len(crowd.times("e001")) <= 5, "nobody waits for one that is gone"


def test_a_look_without_an_answer_is_noticed_when_it_is_overdue() -> None:
    crowd = Crowd(3)
    crowd.pass_time(1)
    crowd.quiet.add("e001")
    crowd.pass_time(2 + crowd.timing.look_timeout + 0.1)

    assert crowd.engine("e001").misses == 1


def test_a_verifying_operation_is_looked_at_soon_and_again() -> None:
    bench = Bench(proxies="x")
    bench.want(Control.PAUSED)
    bench.until_phase(Phase.VERIFYING)
    bench.look("a", paused=False)
    before = len(bench.log)
    bench.tick(bench.timing.look_soon)

    assert any(isinstance(one, Look) for one in bench.log[before:])


def test_engines_that_went_are_not_looked_at() -> None:
    crowd = Crowd(4)
    crowd.pass_time(1)
    crowd.do(SpecChanged(now=crowd.now, pools=(), deliberate=True))
    crowd.looks.clear()
    crowd.pass_time(10)

    assert crowd.asked == [] and crowd.looks == []
