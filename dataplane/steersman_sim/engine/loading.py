"""Weights that are written into the ranks, and what may go wrong with that."""

import asyncio

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.faults import Fault, Lie, When
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import Refusal, answer_of

MISSING = "/missing"
"""Where nothing is: a path that begins so has no weights."""


async def load_weights(call: Call, source: str, *, version: str | None) -> None:
    """Write weights into all ranks, between two steps of each. Takes ``refit_s``.

    With a fault that strikes midway the weights are half-written, and stay so if it ends the load.
    One that lies leaves undone what it claims.

    Raises:
        Refusal: the fault answers.
    """
    core, fault = call.core, call.fault
    midway = fault if fault is not None and fault.when is When.MIDWAY else None
    lie = None if fault is None else fault.lie
    half = core.config.timings.refit_s / 2

    async def load(rank: Rank) -> None:
        await core.pace.sleep(half)
        if midway is not None:
            rank.weights.tear()
            core.watch.notify()
            await _strike(call, midway)
        await core.pace.sleep(half)
        match lie:
            case Lie.NOTHING:
                rank.weights.pretend(None)
            case Lie.WEIGHTS:
                rank.weights.pretend(version)
            case Lie.VERSION | None:
                rank.weights.load(source, version=version, shown=lie is None)

    await core.on_all_ranks(load)
    core.watch.notify()


async def spoil_weights(core: EngineCore) -> None:
    """Begin a load that fails at once."""

    async def tear(rank: Rank) -> None:
        rank.weights.tear()

    await core.on_all_ranks(tear)
    core.watch.notify()


def shown_after(call: Call, version: str | None) -> str | None:
    """The version that a load makes an engine show; ``None`` if it goes on showing the old one."""
    lie = None if call.fault is None else call.fault.lie
    return None if lie in (Lie.NOTHING, Lie.VERSION) else version


async def _strike(call: Call, fault: Fault) -> None:
    if fault.latency:
        await asyncio.sleep(fault.latency)
    if fault.die:
        await call.core.die(f"fault in the middle of {call.entry.path}")
    if fault.hang:
        await asyncio.Event().wait()
    if fault.drop:
        call.reset()
    elif fault.status is not None:
        raise Refusal(answer_of(fault.body, status=fault.status))
