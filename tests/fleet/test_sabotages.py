"""The search notices every rule that is taken out of the barrier (docs/sabotages.md)."""

import re
from pathlib import Path

import pytest

from tests.fleet.sabotages import SABOTAGES
from tests.fleet.world.search import run_seed

PAGE = Path(__file__).parents[2] / "docs" / "sabotages.md"
MOST = 1_000
"""Seeds, half of what runs on every submission."""


def seeds_needed(name: str) -> int | None:
    """How many seeds it takes until a sabotage is found."""
    with SABOTAGES[name]():
        for seed in range(MOST):
            if run_seed(seed)[1] is not None:
                return seed + 1
    return None


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str) -> None:
    needed = seeds_needed(name)
    assert needed is not None, f"{MOST} seeds do not show that {name}"


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_leaves_no_trace_of_itself(name: str) -> None:
    before = run_seed(1)[0]
    with SABOTAGES[name]():
        pass
    assert [manager.events for manager in run_seed(1)[0].past] == [
        manager.events for manager in before.past
    ]


def test_the_page_names_every_sabotage() -> None:
    named = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    assert named == set(SABOTAGES)
