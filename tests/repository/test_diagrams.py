"""The diagrams name the modules of today."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
DIAGRAMS = sorted(path for path in DOCS.glob("life-of-a-*.md"))
MODULE = re.compile(r"\bsteersman(?:_\w+)?(?:\.\w+)+")
ARROW = re.compile(r"^\s+\w+-?->>\w+: .*$", re.MULTILINE)


@pytest.mark.parametrize("page", DIAGRAMS, ids=lambda page: page.stem)
def test_every_module_that_a_diagram_names_exists(page: Path) -> None:
    names = set(MODULE.findall(page.read_text()))

    assert names
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


def test_every_arrow_of_the_life_of_a_request_names_its_module_or_a_call() -> None:
    arrows = ARROW.findall((DOCS / "life-of-a-request.md").read_text())

    assert len(arrows) > 15
    assert [arrow for arrow in arrows if "steersman" not in arrow] == []
