"""Becoming the leader, from what the one before left and from a look at every engine; and ceasing."""

from steersman.table import Epoch
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import Durable
from steersman_operator.fleet.meeting import new_engine, take_record


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
        promoted={},
    )
    for name, engine in list(draft.engines.items()):
        record = take_record(draft, name)
        draft.put_engine(new_engine(draft, engine.spec, pool=engine.pool, record=record))
    for uid in draft.proxies:
        draft.change_proxy(uid, acked=None, heard=None, in_flight={})


def deposed(draft: Draft) -> None:
    """Do nothing any more. A call that is under way ends as it ends; the next leader looks."""
    draft.change(leading=False, published=False)
    for name in draft.engines:
        draft.change_engine(name, op=None, looking=None, asking_load=None, store_at=None)


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
