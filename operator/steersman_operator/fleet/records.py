"""What is written down of an engine, so that it survives the operator."""

from steersman.engine import Control
from steersman_operator.fleet.commands import Store
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import CallKind, Durable
from steersman_operator.fleet.spec import Weights
from steersman_operator.fleet.state import EngineState


def write_intent(
    draft: Draft,
    engine: EngineState,
    kind: CallKind,
    *,
    goal: Control,
    timeout: float,
    tags: tuple[str, ...],
    weights: Weights | None,
) -> int:
    """Have the intent of a call written; returns the number of the command."""
    record = Durable(
        engine=engine.spec.id,
        facts=engine.facts,
        call=kind,
        goal=goal,
        term=draft.state.term,
        deadline=timeout,
        counted_version=engine.counted_version,
        weights=weights,
        tags=tags,
        version_before=engine.version,
        loaded=engine.loaded,
        cache_generation=engine.cache_generation,
    )
    return _write(draft, record)


def write_rest(draft: Draft, engine: EngineState, *, goal: Control) -> None:
    """Have it written that an engine was put into ``goal`` and that nothing is under way."""
    record = Durable(
        engine=engine.spec.id,
        facts=engine.facts,
        goal=goal,
        term=draft.state.term,
        counted_version=engine.counted_version,
        loaded=engine.loaded,
        cache_generation=engine.cache_generation,
    )
    _write(draft, record)


def take_back(draft: Draft, engine: EngineState, *, goal: Control) -> None:
    """Replace an intent whose call is known not to be under way."""
    record = engine.durable
    if record is not None and record.call is not None and engine.facts.released is not None:
        write_rest(draft, engine, goal=goal)


def refused(draft: Draft, name: str, *, number: int) -> None:
    """A record could not be written. An intent is written anew by its operation, others are here."""
    engine = draft.engines[name]
    if engine.stored_as == number and engine.durable is not None and engine.durable.call is None:
        draft.change_engine(name, store_at=draft.now + draft.timing.retry)


def write_again_if_due(draft: Draft, name: str) -> None:
    """Send a record that was refused once more."""
    engine = draft.engines[name]
    if engine.store_at is not None and draft.now >= engine.store_at:
        assert engine.durable is not None, "it was refused"
        _write(draft, engine.durable)


def _write(draft: Draft, record: Durable) -> int:
    number = draft.number()
    draft.emit(Store(number=number, record=record))
    draft.change_engine(record.engine, durable=record, stored_as=number, store_at=None)
    return number
