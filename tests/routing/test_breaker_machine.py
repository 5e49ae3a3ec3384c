"""Guards and breakers in every interleaving: no count and no probe is ever lost, or given back twice.

The machine keeps its own books, from the rules in words: of each engine the outcomes that count since
its breaker last changed, and who is its probe.
"""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from steersman.clock import FakeClock
from steersman.engine import Role
from steersman.errors import NoAvailableEngine
from steersman.settings import BreakerSettings, PoolSettings, RoutingPolicy
from steersman_proxy.load.breaker import BreakerState, Judgement
from steersman_proxy.load.inflight import EngineLoad
from steersman_proxy.routing.request import Selected
from tests.routing.support import POOL, fleet, request, row, table

NAMES = ("a", "b")
judgements = st.sampled_from([None, *Judgement, Judgement.FAILURE])
FAILURES = 2
COOLDOWN = 30.0


class Book:
    """One engine, from the rules in words."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.era = 0
        """Goes up whenever the state changes, or a probe leaves or returns."""
        self.row_of_failures = 0
        self.until = 0.0
        self.probe: object | None = None

    def change(self, state: BreakerState) -> None:
        self.state = state
        self.era += 1
        self.row_of_failures = 0
        self.probe = None

    @property
    def takes(self) -> bool:
        return self.state is BreakerState.CLOSED or (
            self.state is BreakerState.HALF_OPEN and self.probe is None
        )


class Request:
    def __init__(self, selected: Selected, book: Book) -> None:
        self.selected = selected
        self.load: EngineLoad = selected.engine.load
        self.book = book
        self.era = book.era


class Guards(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.settings = self.of(enabled=True)
        self.fleet = fleet(clock=self.clock, settings=self.settings)
        self.seq = 0
        self.boots = dict.fromkeys(NAMES, 0)
        self.books: dict[str, Book] = {}
        self.running: list[Request] = []
        self.table(set(NAMES))

    @staticmethod
    def of(*, enabled: bool) -> PoolSettings:
        return PoolSettings(
            policy=RoutingPolicy.RANDOM,
            breaker=BreakerSettings(enabled=enabled, failures=FAILURES, cooldown=COOLDOWN),
        )

    def table(self, names: set[str]) -> None:
        self.seq += 1
        rows = [row(name, boot_id=str(self.boots[name])) for name in sorted(names)]
        self.fleet.apply(table(rows, settings=self.settings, seq=self.seq))
        self.books = {name: self.books.get(name) or Book() for name in names}

    # --- what may happen --------------------------------------------------------------------------

    @rule(named=st.none() | st.sampled_from(NAMES))
    def select(self, named: str | None) -> None:
        wanted = {named} if named else set(self.books)
        able = {name for name in wanted if name in self.books and self.books[name].takes}
        result = self.fleet.select(request(target=named))
        if not isinstance(result, Selected):
            assert isinstance(result, NoAvailableEngine)
            assert not able
            self.told_when_to_come_back(result, wanted)
            return
        assert result.engine.id in able
        book = self.books[result.engine.id]
        if book.state is BreakerState.HALF_OPEN:
            book.era += 1
            book.probe = result
            assert result.guard.probe
        self.running.append(Request(result, book))

    def told_when_to_come_back(self, error: NoAvailableEngine, wanted: set[str]) -> None:
        books = [self.books[name] for name in wanted if name in self.books]
        if not books:
            return
        soonest = min(0.0 if book.probe else book.until - self.clock.now() for book in books)
        assert error.retry_after is not None
        assert max(1.0, soonest) <= error.retry_after < max(1.0, soonest) + 1

    @rule(named=st.sampled_from(NAMES), many=st.integers(2, 4))
    def a_burst_that_fails(self, named: str, many: int) -> None:
        """Without it hardly any breaker would ever open. Some requests go on to fail late."""
        before = len(self.running)
        for _ in range(many):
            self.select(named)
        for one in self.running[before:][:FAILURES]:
            self.running.remove(one)
            self.finish(one, Judgement.FAILURE, again=False)

    @rule(data=st.data(), judgement=judgements, again=st.booleans())
    def end(self, data: st.DataObject, judgement: Judgement | None, again: bool) -> None:
        if self.running:
            one = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.finish(one, judgement, again=again)

    def finish(self, one: Request, judgement: Judgement | None, *, again: bool) -> None:
        guard = one.selected.guard
        if judgement is not None:
            guard.judge(judgement)
        guard.release()
        if again:  # as from a `finally` above another one
            guard.judge(Judgement.FAILURE)
            guard.release()
        self.account(one, judgement or Judgement.NEUTRAL)

    def account(self, one: Request, judgement: Judgement) -> None:
        book = one.book
        if one.era != book.era or not self.settings.breaker.enabled:
            return
        if book.probe is one.selected:
            match judgement:
                case Judgement.SUCCESS:
                    book.change(BreakerState.CLOSED)
                case Judgement.FAILURE:
                    self.trip(book)
                case Judgement.NEUTRAL:
                    book.change(BreakerState.HALF_OPEN)
        elif judgement is Judgement.SUCCESS:
            book.row_of_failures = 0
        elif judgement is Judgement.FAILURE:
            book.row_of_failures += 1
            if book.row_of_failures == FAILURES:
                self.trip(book)

    def trip(self, book: Book) -> None:
        book.change(BreakerState.OPEN)
        book.until = self.clock.now() + COOLDOWN

    @rule(seconds=st.sampled_from([0.5, 10.0, COOLDOWN]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for book in self.books.values():
            if book.state is BreakerState.OPEN and book.until <= self.clock.now():
                book.change(BreakerState.HALF_OPEN)

    # The rules that make all new are rarely drawn, or nothing else would come about between them.

    @rule(names=st.sampled_from([set(NAMES)] * 4 + [{"a"}, {"b"}, set()]))
    def engines_come_and_go(self, names: set[str]) -> None:
        self.table(names)

    @rule(name=st.sampled_from([None] * 4 + list(NAMES)))
    def engine_starts_anew(self, name: str | None) -> None:
        if name is not None and name in self.books:
            self.boots[name] += 1
            self.books[name].change(BreakerState.CLOSED)
            self.table(set(self.books))

    @rule(enabled=st.sampled_from([True] * 5 + [False]))
    def switch(self, enabled: bool) -> None:
        self.settings = self.of(enabled=enabled)
        if not enabled:
            for book in self.books.values():
                book.change(BreakerState.CLOSED)
        self.table(set(self.books))

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        for engine in self.fleet.engines():
            ours = sum(one.load is engine.load for one in self.running)
            assert engine.load.requests == ours
        assert all(one.load.requests > 0 for one in self.running)

    @invariant()
    def breakers_agree(self) -> None:
        self.fleet.catch_up()
        for engine in self.fleet.engines():
            book = self.books[engine.id]
            assert engine.breaker.state is book.state
            assert engine.breaker.blocked is not book.takes
            probes = [
                one for one in self.running if one.load is engine.load and one.selected.guard.probe
            ]
            assert len(probes) == engine.breaker.probing == (book.probe is not None)

    @invariant()
    def what_is_computed_once_is_up_to_date(self) -> None:
        self.fleet.catch_up()
        pool = self.fleet.pool(POOL)
        assert pool is not None
        eligible = pool.eligible(Role.PLAIN, pool.settings.version_policy)
        able = {name for name, book in self.books.items() if book.takes}
        assert {engine.id for engine in eligible.engines} == able

    def teardown(self) -> None:
        """When all has ended and every cooldown is over, each engine takes requests again."""
        self.table(set(NAMES))
        for one in self.running:
            one.selected.guard.release()
        self.clock.advance(COOLDOWN)
        for name in NAMES:
            result = self.fleet.select(request(target=name))
            assert isinstance(result, Selected)
            result.guard.judge(Judgement.SUCCESS)
            result.guard.release()
            assert result.engine.load.requests == 0
            assert result.engine.breaker.state is BreakerState.CLOSED


Guards.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=60)
TestGuards = Guards.TestCase
