"""Becoming the leader: from what the one before left, and from a look at every engine."""

import msgspec

from steersman.table import Epoch
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import Durable, Facts
from steersman_operator.fleet.spec import EngineSpec
from steersman_operator.fleet.state import EngineState, Operation, Phase


def elected(draft: Draft, *, term: int, durable: tuple[Durable, ...]) -> None:
    """Begin anew: nothing that this process knew before it led is believed.

    The proxies keep the last table of the leader before. Nothing is published until the spec, the
    proxies and every engine are known.
    """
    draft.change(
        term=term,
        leading=True,
        epoch=Epoch(term, 0),
        published=False,
        elected_at=draft.now,
        durable=durable,
        watched=(),
        table_digest="",
        promoted={},
        brake_until=None,
    )
    for name, engine in list(draft.engines.items()):
        draft.engines[name] = new_engine(draft, engine.spec, pool=engine.pool)
    for uid in draft.proxies:
        draft.change_proxy(uid, acked=None, heard=None, in_flight={})


def deposed(draft: Draft) -> None:
    """Do nothing any more. A call that is under way ends as it ends; the next leader looks."""
    draft.change(leading=False, published=False)


def new_engine(draft: Draft, spec: EngineSpec, *, pool: str) -> EngineState:
    """An engine that this leader meets, with what was written down of it."""
    record = next((one for one in draft.state.durable if one.engine == spec.id), None)
    engine = EngineState(spec=spec, pool=pool, look_at=draft.now)
    if record is None:
        facts = Facts(boot_id=spec.boot_id)
        return msgspec.structs.replace(engine, facts=facts)
    if record.call is None:
        settled = record.goal or engine.settled
        return msgspec.structs.replace(engine, facts=record.facts, settled=settled, durable=record)
    # An intent: the call may have been made, may be running yet, or never was. Nothing is called
    # again before the engine was seen, and not before the call could have ended.
    assert record.goal is not None, "an intent has a goal"
    operation = Operation(
        goal=record.goal,
        phase=Phase.VERIFYING,
        started=draft.now,
        drain_until=draft.now,
        disturbed=True,
        call=record.call,
        unknown=True,
        ended_at=draft.now,
        call_until=draft.now + record.deadline,
    )
    return msgspec.structs.replace(
        engine, facts=record.facts.during(record.call), op=operation, durable=record
    )


def ready_to_publish(draft: Draft) -> bool:
    """Whether enough is known for the first table of this leader.

    A partial or empty first table would take a healthy fleet down. Engines that do not answer are
    waited for only so long; they are then published closed.
    """
    state = draft.state
    if not state.leading or not state.spec_known or not state.proxies_known:
        return False
    if all(engine.known for engine in draft.engines.values()):
        return True
    return draft.now - state.elected_at >= draft.timing.first_look
