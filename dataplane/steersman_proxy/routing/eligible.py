"""The engines that one kind of request may go to: computed once, read by every selection."""

from collections.abc import Iterable, Mapping

from steersman_proxy.load.breaker import Breaker
from steersman_proxy.routing.eligibility import WAITABLE, Reason
from steersman_proxy.routing.engines import Engine


class Eligible:
    """The outcome of eligibility for one (pool, role, version policy) while nothing changes.

    Everything is fixed when it is made, except ``cursor``, the place of the rotation.
    """

    __slots__ = ("cursor", "engines", "filtered", "first_tripped", "mask", "waitable_mask")

    def __init__(self, judged: Iterable[tuple[Engine, Reason | None]]) -> None:
        eligible: list[Engine] = []
        filtered: dict[Reason, int] = {}
        mask = waitable_mask = 0
        tripped: Breaker | None = None
        for engine, reason in judged:
            if reason is None:
                eligible.append(engine)
                mask |= 1 << engine.index
                continue
            if reason is not Reason.ROLE:
                filtered[reason] = filtered.get(reason, 0) + 1
            if reason in WAITABLE:
                waitable_mask |= 1 << engine.index
            elif reason is Reason.BREAKER_OPEN:
                tripped = _sooner(tripped, engine.breaker)
        self.engines = tuple(eligible)
        """In the order of the table."""
        self.mask = mask
        """The same as bits; bit *i* is the pool's engine *i*."""
        self.waitable_mask = waitable_mask
        """Engines that may become eligible when an operation ends."""
        self.filtered: Mapping[Reason, int] = filtered
        """How many engines of the role each reason keeps out; what filter metrics count."""
        self.first_tripped = tripped
        """Of the breakers that alone keep an engine out, the one that may let it in first."""
        self.cursor = 0

    @property
    def waitable(self) -> bool:
        """Whether some engine could serve after an operation."""
        return self.waitable_mask != 0

    def has(self, engine: Engine) -> bool:
        """Whether ``engine`` is eligible."""
        return bool(self.mask >> engine.index & 1)

    def may_come(self, engine: Engine) -> bool:
        """Whether ``engine`` is out only until an operation ends."""
        return bool(self.waitable_mask >> engine.index & 1)


def _sooner(one: Breaker | None, other: Breaker) -> Breaker:
    """Which of two breakers may close first. One that is being probed, and has no ``due``, may at
    any moment.
    """
    if one is None or other.due is None:
        return other
    return one if one.due is None or one.due <= other.due else other
