"""Ways to break the barrier. Each takes one rule out; the search has to notice every one of them.

A guarantee that no test can see missing is not tested. Each sabotage is small and plausible: what a
tired author might have written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from steersman_operator.fleet import (
    barrier,
    calling,
    draining,
    leadership,
    looking,
    meeting,
    membership,
    proxies,
    readiness,
    step,
)
from steersman_operator.fleet.facts import CallKind, Facts, Outcome
from steersman_operator.fleet.state import Phase
from tests.fleet.world.manager import Manager
from tests.fleet.world.proxy import ModelProxy

Sabotage = Callable[[], Any]
SABOTAGES: dict[str, Sabotage] = {}


def sabotage(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Name a sabotage after its function."""
    SABOTAGES[function.__name__.replace("_", "-")] = contextmanager(function)
    return function


# --- acknowledgements and zeros -------------------------------------------------------------------


@sabotage
def acknowledgements_are_not_awaited() -> Iterator[None]:
    """Whoever has not answered yet is taken to agree."""
    with mock.patch.object(barrier, "acknowledged", return_value=True):
        yield


@sabotage
def zeros_are_not_awaited() -> Iterator[None]:
    """An acknowledgement is taken to mean that nothing runs any more."""
    with mock.patch.object(barrier, "in_flight", return_value=0):
        yield


@sabotage
def old_zeros_are_believed() -> Iterator[None]:
    """A zero counts whatever table it was reported under."""

    def in_flight(proxy: Any, engine: str, closed_at: Any) -> int | None:
        report = proxy.in_flight.get(engine)
        return None if report is None else report[0]

    with mock.patch.object(barrier, "in_flight", in_flight):
        yield


@sabotage
def terms_are_ignored() -> Iterator[None]:
    """The number of a table is taken for its epoch."""

    def acked(draft: Any, ref: Any, epoch: Any) -> None:
        known = draft.proxies.get(ref.uid)
        if known is not None and known.ref == ref:
            now = msgspec.structs.replace(epoch, term=draft.state.term)
            newest = now if known.acked is None else max(known.acked, now)
            draft.change_proxy(ref.uid, acked=newest, heard=draft.now)

    true = proxies.in_flight

    def in_flight(draft: Any, ref: Any, *, epoch: Any, counts: dict[str, int]) -> None:
        now = msgspec.structs.replace(epoch, term=draft.state.term)
        true(draft, ref, epoch=now, counts=counts)

    with (
        mock.patch.object(proxies, "acked", acked),
        mock.patch.object(proxies, "in_flight", in_flight),
    ):
        yield


# --- who is required ------------------------------------------------------------------------------


@sabotage
def a_lost_connection_is_death() -> Iterator[None]:
    """A proxy that cannot be reached is not waited for."""

    def lost(draft: Any, ref: Any) -> None:
        known = draft.proxies.get(ref.uid)
        if known is not None and known.ref == ref:
            draft.remove_proxy(ref.uid)

    with mock.patch.object(proxies, "lost", lost):
        yield


@sabotage
def joiners_are_not_required() -> Iterator[None]:
    """Who joins, or joins again, is taken to have the newest table already."""
    true = proxies.joined

    def joined(draft: Any, ref: Any) -> None:
        true(draft, ref)
        zeros = dict.fromkeys(draft.engines, (0, draft.state.epoch))
        draft.change_proxy(ref.uid, acked=draft.state.epoch, in_flight=zeros)

    with mock.patch.object(proxies, "joined", joined):
        yield


@sabotage
def nobody_is_required_before_the_first_table() -> Iterator[None]:
    """A new leader begins before it knows who there is, and its first table is not awaited."""

    def acknowledged(self: barrier.Barrier) -> bool:
        return self.unpublished or not self.unacked

    with mock.patch.object(barrier.Barrier, "acknowledged", property(acknowledged)):
        yield


@sabotage
def fenced_too_early() -> Iterator[None]:
    """A proxy is counted out as soon as it is late, while it may still start requests."""

    def is_fenced(proxy: Any, *, now: float, since: float, timing: Any) -> bool:
        last = max(since, proxy.met if proxy.heard is None else proxy.heard)
        return bool(now - last > timing.grant / 4)

    with mock.patch.object(barrier, "is_fenced", is_fenced):
        yield


# --- the gate -------------------------------------------------------------------------------------


@sabotage
def the_gate_opens_before_it_is_verified() -> Iterator[None]:
    """A call without an answer is taken to have worked."""
    true = calling.call_ended

    def call_ended(draft: Any, name: str, *, number: int, outcome: Any, detail: str) -> None:
        engine = draft.engines[name]
        op = engine.op
        if op is not None and op.phase is Phase.EXECUTING and op.number == number:
            facts = engine.durable.facts.after(op.call)
            true(draft, name, number=number, outcome=Outcome.OK, detail=detail)
            changed = msgspec.structs.replace(draft.engines[name].op, looked_at=draft.now)
            draft.change_engine(name, facts=facts, op=changed)

    with mock.patch.object(calling, "call_ended", call_ended):
        yield


@sabotage
def closing_is_stamped_with_the_table_before() -> Iterator[None]:
    """The gate is taken to be closed by a table that was published before it was."""
    true = step._publish

    def publish(draft: Any) -> None:
        before = draft.state.epoch
        unstamped = [name for name in draft.engines if step._unstamped(draft, name)]
        true(draft)
        for name in unstamped:
            if draft.engines[name].closed_at is not None and before.seq:
                draft.change_engine(name, closed_at=before)

    with mock.patch.object(step, "_publish", publish):
        yield


# --- calls ----------------------------------------------------------------------------------------


@sabotage
def idleness_is_not_proven() -> Iterator[None]:
    """That no proxy has anything in flight is taken to mean that the engine has nothing."""

    def idle_enough(operation: Any, *, timing: Any) -> bool:
        return True

    with (
        mock.patch.object(readiness, "idle_enough", idle_enough),
        mock.patch.object(draining, "idle_enough", idle_enough),
    ):
        yield


@sabotage
def calls_go_before_the_intent_is_written() -> Iterator[None]:
    """The intent is sent to the store, and the engine is called at once."""
    true = calling.claim

    def claim(draft: Any, engine: Any) -> None:
        true(draft, engine)
        op = draft.engines[engine.spec.id].op
        if op is not None and op.phase is Phase.CLAIMING:
            calling.claimed(draft, engine.spec.id, number=op.number, ok=True, detail="")

    with (
        mock.patch.object(calling, "claim", claim),
        mock.patch.object(draining, "claim", claim),
    ):
        yield


@sabotage
def intents_of_others_are_ignored() -> Iterator[None]:
    """A new leader takes an engine as it was before the call that its predecessor was making."""
    true = meeting.new_engine

    def new_engine(draft: Any, spec: Any, *, pool: str, record: Any) -> Any:
        if record is not None and record.call is not None:
            record = msgspec.structs.replace(record, call=None, goal=None)
        return true(draft, spec, pool=pool, record=record)

    with (
        mock.patch.object(leadership, "new_engine", new_engine),
        mock.patch.object(membership, "new_engine", new_engine),
    ):
        yield


@sabotage
def an_unknown_call_is_made_again_at_once() -> Iterator[None]:
    """A call without an answer is taken not to have happened."""
    true = calling.call_ended

    def call_ended(draft: Any, name: str, *, number: int, outcome: Any, detail: str) -> None:
        if outcome is Outcome.UNKNOWN:
            outcome = Outcome.REFUSED
        true(draft, name, number=number, outcome=outcome, detail=detail)

    with mock.patch.object(calling, "call_ended", call_ended):
        yield


@sabotage
def a_restarted_engine_is_taken_for_the_old_one() -> Iterator[None]:
    """What is remembered of an engine outlives its process."""

    def restarted(draft: Any, engine: Any, boot: str) -> Any:
        facts: Facts = msgspec.structs.replace(engine.facts, boot_id=boot)
        return draft.change_engine(engine.spec.id, facts=facts)

    with mock.patch.object(looking, "_restarted", restarted):
        yield


@sabotage
def the_lease_is_not_looked_at() -> Iterator[None]:
    """An operator goes on as the leader until somebody tells it otherwise."""
    true = calling.claimed

    def claimed(draft: Any, name: str, *, number: int, ok: bool, detail: str) -> None:
        until = draft.state.lease_until
        draft.change(lease_until=float("inf"))
        true(draft, name, number=number, ok=True, detail=detail)
        draft.change(lease_until=until)

    with (
        mock.patch.object(calling, "claimed", claimed),
        mock.patch.object(Manager, "obeys_the_lease", False),
    ):
        yield


# --- weights --------------------------------------------------------------------------------------


@sabotage
def a_refused_refit_is_taken_to_have_changed_nothing() -> Iterator[None]:
    """Whatever ended badly left the old weights in place."""
    true = calling.call_ended

    def call_ended(draft: Any, name: str, *, number: int, outcome: Any, detail: str) -> None:
        operation = draft.engines[name].op
        if operation is not None and operation.call is CallKind.REFIT and outcome is not Outcome.OK:
            outcome = Outcome.REFUSED
        true(draft, name, number=number, outcome=outcome, detail=detail)

    with mock.patch.object(calling, "call_ended", call_ended):
        yield


@sabotage
def uncertain_weights_are_forgotten_by_the_next_operator() -> Iterator[None]:
    """What is written down of an engine leaves out that its weights may not be whole."""
    true = meeting.new_engine

    def new_engine(draft: Any, spec: Any, *, pool: str, record: Any) -> Any:
        engine = true(draft, spec, pool=pool, record=record)
        facts = msgspec.structs.replace(engine.facts, uncertain=False)
        return msgspec.structs.replace(engine, facts=facts)

    with (
        mock.patch.object(leadership, "new_engine", new_engine),
        mock.patch.object(membership, "new_engine", new_engine),
    ):
        yield


@sabotage
def loading_is_taken_to_disturb_nobody() -> Iterator[None]:
    """Weights are brought in as memory is given back: without asking the proxies."""
    true = readiness.disturbs_nobody

    def disturbs_nobody(engine: Any, operation: Any) -> bool:
        return operation.weights is not None or true(engine, operation)

    with (
        mock.patch.object(readiness, "disturbs_nobody", disturbs_nobody),
        mock.patch.object(draining, "disturbs_nobody", disturbs_nobody),
    ):
        yield


@sabotage
def the_version_that_an_engine_shows_is_always_a_proof() -> Iterator[None]:
    """A load whose outcome is unknown is over once the version is right, though it was before."""
    true = calling._took_effect

    def took_effect(engine: Any, operation: Any) -> bool:
        return true(engine, msgspec.structs.replace(operation, unknown=False))

    with mock.patch.object(calling, "_took_effect", took_effect):
        yield


# --- the proxies' side ----------------------------------------------------------------------------


@sabotage
def a_proxy_counts_a_request_when_it_is_sent() -> Iterator[None]:
    """Between the choice of an engine and the first byte a request is nowhere."""
    with mock.patch.object(ModelProxy, "counts_unsent", False):
        yield


@sabotage
def a_proxy_sends_what_it_chose_before_it_stood_still() -> Iterator[None]:
    """A fenced pool's contact is looked at when an engine is chosen, and not when bytes are sent."""
    with mock.patch.object(ModelProxy, "asks_again", False):
        yield


@sabotage
def a_proxy_acknowledges_before_it_applies() -> Iterator[None]:
    """A table is acknowledged when it has come, and put in force a moment later."""
    with mock.patch.object(ModelProxy, "acks_before_applying", True):
        yield
