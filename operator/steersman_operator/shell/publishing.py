"""Whether anybody waits for what a trainer says that it has transferred."""

from collections.abc import Sequence

from steersman.errors import NotAwaiting
from steersman_operator.fleet.awaiting import waits_for
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.fleet.state import EngineState, Phase, State


def is_awaited(state: State, pool: str, version: str) -> bool:
    """Whether an engine of a pool waits for a version; false if all of them have it already, so that
    a commit may be sent again.

    :raises NotAwaiting: if it is neither.
    """
    engines = [engine for engine in state.engines.values() if engine.pool == pool]
    if any(waits_for(engine, version) for engine in engines):
        return True
    spec = state.pools.get(pool)
    target = None if spec is None else spec.weights
    if target is not None and target.version == version and _all_have(engines, target):
        return False
    raise NotAwaiting(_why_not(pool, version, target, engines))


def _all_have(engines: Sequence[EngineState], target: Weights) -> bool:
    """Whether the target is in every engine, or on its way from a transfer that was committed."""
    return all(
        engine.loaded == target.id or (engine.op is not None and engine.op.transferred)
        for engine in engines
    )


def _why_not(
    pool: str, version: str, target: Weights | None, engines: Sequence[EngineState]
) -> str:
    waiting = {
        engine.op.weights.version
        for engine in engines
        if engine.op is not None
        and engine.op.weights is not None
        and engine.op.phase is Phase.AWAITING
    }
    if waiting:
        named = ", ".join(sorted(waiting))
        return f"the engines of {pool} wait for the transfer of {named}, not of {version}"
    if target is None:
        return f"no weights are asked for in {pool}, so that nobody waits for {version}"
    if target.version != version:
        return f"{pool} is to have {target.version}, not {version}"
    if target.source is SourceKind.DISK:
        return f"the engines of {pool} read {version} from disk by themselves"
    return f"no engine of {pool} is closed and paused for the transfer of {version} yet"
