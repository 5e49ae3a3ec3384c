"""Thousands of worlds, each on its own seed, none of which may break a rule.

Fixed seeds by default. ``make search`` takes new ones. ``STEERSMAN_SEEDS`` names others, as a number
of seeds (``50000``) or a range (``1200-1300``); ``STEERSMAN_RECORDS`` a folder for the records of
what fails.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from steersman_operator.fleet.record import Record
from tests.fleet.sabotages import SABOTAGES
from tests.fleet.world.search import run_seed, search, write_records

FIXED = 2_000
FRESH = 100_000


def wanted_seeds(profile: str) -> Sequence[int]:
    wish = os.environ.get("STEERSMAN_SEEDS", "")
    first, dash, last = wish.partition("-")
    if dash:
        return range(int(first), int(last) + 1)
    if profile == "search":
        start = random.SystemRandom().randrange(10**9)
        return range(start, start + int(wish or FRESH))
    return range(int(wish or FIXED))


@pytest.mark.timeout(0)
def test_no_world_breaks_a_rule(request: pytest.FixtureRequest) -> None:
    seeds = wanted_seeds(request.config.getoption("--hypothesis-profile"))
    tally = search(seeds)
    assert not tally.findings, "\n".join(map(str, tally.findings))
    # Worlds in which nothing happens break no rule either.
    assert tally.steps > 300 * len(seeds)


def test_a_seed_makes_the_same_world_again() -> None:
    one, other = run_seed(7)[0], run_seed(7)[0]
    assert [manager.events for manager in one.past] == [manager.events for manager in other.past]
    assert one.scheduler.events == other.scheduler.events


def test_what_fails_leaves_records_that_replay_to_the_same_states(tmp_path: Path) -> None:
    with SABOTAGES["zeros-are-not-awaited"]():
        seed, (world, problem) = next(
            (seed, found) for seed in range(100) if (found := run_seed(seed))[1] is not None
        )
        assert problem is not None and "requests on it" in problem, f"seed {seed}"
        paths = write_records(world, tmp_path)
        for path, manager in zip(paths, world.past, strict=True):
            steps = list(Record.read(Path(path).read_bytes(), name=path).replay())
            assert not any(step.differs for step in steps)
            assert [step.event for step in steps] == manager.events
            assert not steps or steps[-1].recorded is not None
