"""Who has what only one pool can have: a model, an engine, or to be the default.

Whoever has it keeps it as long as it asks for it, whatever others write: nobody may take engines or
a model away from a fleet that works. Among those that ask for what nobody has, the older one gets it.
"""

from collections.abc import Mapping, Sequence

from steersman_operator.resources.contradictions import MAX_ENGINES
from steersman_operator.resources.resource import RolloutEngine

DEFAULT = "default"
_ENGINE = "engine "


def engine_claim(engine: str) -> str:
    """What is claimed by whoever names the engine of this id."""
    return f"{_ENGINE}{engine}"


def model_claim(model: str) -> str:
    """What is claimed by whoever serves the model."""
    return f"model {model}"


class Claims:
    """Who has what from now on."""

    def __init__(self, engines: Sequence[RolloutEngine], held: Mapping[str, str]) -> None:
        """``engines``, the older first, ask; ``held`` is who has had what, by name."""
        asked: dict[str, list[RolloutEngine]] = {}
        for resource in engines:
            for claim in _claims(resource):
                asked.setdefault(claim, []).append(resource)
        holders = {claim: _holder(found, held.get(claim)) for claim, found in asked.items()}
        for claim in _beyond(holders, held):
            del holders[claim]
        self._holders = holders
        # A directory that cannot be read has no resources either, and must not cost anybody anything.
        self._names = {claim: one.name for claim, one in holders.items()} if engines else dict(held)

    @property
    def names(self) -> dict[str, str]:
        """The holders' names by claim; to be handed in as ``held`` the next time."""
        return self._names

    def holder(self, claim: str) -> RolloutEngine | None:
        """Who has it; ``None`` if it is an engine beyond what a fleet can have."""
        return self._holders.get(claim)


def _claims(resource: RolloutEngine) -> list[str]:
    spec = resource.spec
    found = [engine_claim(engine.id) for engine in spec.endpoints.static]
    found.append(model_claim(spec.model))
    if spec.default:
        found.append(DEFAULT)
    return found


def _holder(asking: Sequence[RolloutEngine], held_by: str | None) -> RolloutEngine:
    return next((one for one in asking if one.name == held_by), asking[0])


def _beyond(holders: Mapping[str, RolloutEngine], held: Mapping[str, str]) -> list[str]:
    """The engines that a fleet has no room for: the newest."""
    engines = [claim for claim in holders if claim.startswith(_ENGINE)]
    if len(engines) <= MAX_ENGINES:
        return []
    engines.sort(key=lambda claim: held.get(claim) != holders[claim].name)
    return engines[MAX_ENGINES:]
