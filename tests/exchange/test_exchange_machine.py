"""Many exchanges in any order of events, under a table that changes: the counts are always right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from steersman.engine import Control
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import Failure, Hold, Outcome, Respond, Send
from steersman_proxy.exchange.phase import Phase
from steersman_proxy.routing.hold import HoldQueue, Ticket
from steersman_proxy.routing.request import Selected
from tests.exchange.support import World, row

NAMES = ("e0", "e1", "e2")
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream")]
UNSENT = (Failure.CONNECT_REFUSED, Failure.CONNECT_TIMEOUT, Failure.EXHAUSTED)
BEFORE_HEAD = (*UNSENT, Failure.CLOSED_BEFORE_ANSWER, Failure.HEAD_TIMEOUT, Failure.PROTOCOL)


class Driven:
    """An exchange with what its adapter knows."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.ticket: Ticket | None = None
        self.sent_to: str | None = None
        self.answers = 0


class Exchanges(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(*(row(name) for name in NAMES))
        self.hold = HoldQueue(self.world.fleet, clock=self.world.clock)
        self.open: list[Driven] = []
        self.started = 0

    # --- the world --------------------------------------------------------------------------------

    @rule(
        states=st.tuples(*(st.sampled_from(("open", "closed", "paused", "asleep")) for _ in NAMES)),
        versions=st.tuples(*(st.sampled_from(("7", "8")) for _ in NAMES)),
    )
    def new_table(self, states: tuple[str, ...], versions: tuple[str, ...]) -> None:
        self.world.apply(
            *(
                row(
                    name,
                    version,
                    open=state != "closed",
                    paused=state == "paused",
                    released=("weights",) if state == "asleep" else (),
                )
                for name, state, version in zip(NAMES, states, versions, strict=True)
            ),
            fleet_max=max(versions),
        )

    @rule()
    def pump(self) -> None:
        while self.hold.pump():
            pass

    @rule(seconds=st.sampled_from((0.1, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.hold.expire()

    # --- the requests -----------------------------------------------------------------------------

    @rule(target=running, policy=st.sampled_from(("any", "latest-only", "min-version:8")))
    def arrive(self, policy: str) -> Driven:
        driven = Driven(self.world.exchange(x_smg_version_policy=policy))
        self.open.append(driven)
        self.started += 1
        driven.exchange.start()
        self._carry_out(driven, driven.exchange.body([b"{}"]))
        return driven

    @rule(driven=running, failure=st.sampled_from(BEFORE_HEAD))
    def attempt_fails(self, driven: Driven, failure: Failure) -> None:
        if driven.exchange.phase is Phase.SENT:
            self._carry_out(driven, driven.exchange.attempt_failed(failure))

    @rule(driven=running, stream=st.booleans(), body=st.sampled_from((b"", b"{", b'{"a": 1}')))
    def answer(self, driven: Driven, stream: bool, body: bytes) -> None:
        exchange = driven.exchange
        if exchange.phase is Phase.SENT:
            exchange.answer_head(200, SSE if stream else JSON)
        elif exchange.phase is Phase.ANSWER:
            driven.answers += 1
            exchange.answer_data(body)

    @rule(driven=consumes(running), failure=st.sampled_from((None, Failure.INCOMPLETE)))
    def end(self, driven: Driven, failure: Failure | None) -> None:
        exchange = driven.exchange
        if exchange.phase is Phase.ANSWER:
            if failure is None:
                exchange.answer_end()
            else:
                exchange.answer_failed(failure)
        self._close(driven, client_gone=exchange.phase is not Phase.ANSWER)

    def _carry_out(self, driven: Driven, action: object) -> None:
        match action:
            case Send(engine=engine):
                driven.sent_to = engine.id
                # The promise, at the moment of selection.
                assert engine.row.gate.open
                assert engine.row.control is Control.ACTIVE
            case Hold(request=request, wait=wait):
                driven.sent_to = None
                ticket = self.hold.enter(
                    request,
                    wait.lane,
                    on_release=lambda selected: self._released(driven, selected),
                    on_fail=lambda error: self._carry_out(
                        driven, driven.exchange.hold_failed(error)
                    ),
                )
                assert isinstance(ticket, Ticket)
                driven.ticket = ticket
            case Respond():
                driven.sent_to = None
                self._close(driven)
            case _:
                raise AssertionError(action)

    def _released(self, driven: Driven, selected: Selected) -> None:
        driven.ticket = None
        self._carry_out(driven, driven.exchange.released(selected))

    def _close(self, driven: Driven, *, client_gone: bool = False) -> None:
        if driven.ticket is not None:
            driven.ticket.cancel()
            driven.ticket = None
        driven.sent_to = None
        driven.exchange.close(client_gone=client_gone)
        if driven in self.open:
            self.open.remove(driven)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def each_engine_counts_exactly_its_own(self) -> None:
        for name in NAMES:
            counted = self.world.engine(name).load.requests
            assert counted == sum(driven.sent_to == name for driven in self.open)

    @invariant()
    def each_finished_request_has_one_record(self) -> None:
        assert len(self.world.recorder.records) == self.started - len(self.open)

    @invariant()
    def the_queue_holds_exactly_those_who_wait(self) -> None:
        assert self.hold.depth("p") == sum(driven.ticket is not None for driven in self.open)

    def teardown(self) -> None:
        for driven in list(self.open):
            self._close(driven, client_gone=True)
        assert self.world.in_flight == 0
        assert self.hold.depth("p") == self.hold.bytes("p") == 0
        assert all(
            record.error is not None
            for record in self.world.recorder.records
            if record.outcome is Outcome.REJECTED
        )


Exchanges.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestExchanges = Exchanges.TestCase
