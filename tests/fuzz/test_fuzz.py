"""Fixed seeds of the fuzz; ``make fuzz`` runs fresh ones for as long as you like."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.bulk import run_seeds
from tests.fuzz.checking import check
from tests.fuzz.example import dump
from tests.fuzz.examples import example
from tests.fuzz.sockets import SocketWorld
from tests.fuzz.source import Source, sources
from tests.fuzz.world import World

BATCH = 500


@pytest.mark.parametrize("start", range(0, 8 * BATCH, BATCH))
def test_examples_of_seeds(start: int, world: World) -> None:
    assert run_seeds(world, range(start, start + BATCH)) == BATCH


def test_examples_of_seeds_over_sockets(socket_world: SocketWorld) -> None:
    assert run_seeds(socket_world, range(10**6, 10**6 + 250), cuts_every=10**9) == 250


@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(source=sources())
def test_examples_of_hypothesis(world: World, source: Source) -> None:
    made = example(source)
    assert check(world, made) == [], dump(made)
