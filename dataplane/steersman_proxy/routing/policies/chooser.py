"""What a policy must be able to do, and which one a pool gets."""

import random
from collections.abc import Callable
from typing import Protocol

from steersman.settings import RoutingPolicy
from steersman_proxy.load.levels import LoadLevels
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.policies.load_only import LoadOnly
from steersman_proxy.routing.policies.power_of_two import PowerOfTwo
from steersman_proxy.routing.policies.random_choice import RandomChoice
from steersman_proxy.routing.policies.round_robin import RoundRobin


class Chooser(Protocol):
    """One policy, for one pool."""

    def choose(self, eligible: Eligible) -> Engine:
        """One of ``eligible.engines``, of which there is at least one."""
        ...

    def choose_admitted(
        self, eligible: Eligible, admits: Callable[[Engine], bool]
    ) -> Engine | None:
        """One of those that ``admits`` accepts, as if there were no others; ``None`` if it is none.

        ``admits`` is asked as rarely as the policy allows: with a thousand engines, asking all of
        them costs more than everything else.
        """
        ...


def chooser_of(
    policy: RoutingPolicy,
    *,
    engines: tuple[Engine, ...],
    levels: LoadLevels | None,
    source: random.Random,
) -> Chooser:
    """The chooser of requests without a routing key under ``policy``.

    ``engines`` are the pool's, by position; ``levels`` are needed by ``load_only`` alone.
    ``sticky`` and ``consistent_hashing`` have no preference for those; they get ``power_of_two``.
    """
    match policy:
        case RoutingPolicy.ROUND_ROBIN:
            return RoundRobin()
        case RoutingPolicy.RANDOM:
            return RandomChoice(source)
        case RoutingPolicy.LOAD_ONLY:
            assert levels is not None, "the pool keeps levels for this policy"
            return LoadOnly(levels, engines=engines)
        case RoutingPolicy.POWER_OF_TWO | RoutingPolicy.STICKY | RoutingPolicy.CONSISTENT_HASHING:
            return PowerOfTwo(source)
