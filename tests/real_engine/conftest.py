"""Two real engines for all tests of this folder, and the same beginning for each."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.real_engine import environment
from tests.real_engine.engines import RealEngine, start_all

MARK = "real_engine"
HERE = Path(__file__).parent

PROMPT = "a helmsman steers by what he sees"


class Weights(NamedTuple):
    """A checkpoint, and what an engine that has it makes of the prompt."""

    path: Path
    text: str


class Checkpoints(NamedTuple):
    """What the engines can be told to load."""

    first: Weights
    second: Weights
    third: Weights
    half: Path
    """The second one without its second layer."""
    empty: Path
    """A folder without weights."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only on request: these tests download two gigabytes where they have never run."""
    if MARK in config.option.markexpr:
        return
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    if mine:
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


@pytest.fixture(scope="session")
def real_python() -> Path:
    if environment.left_out():
        pytest.skip(environment.LEFT_OUT)
    return environment.python()


@pytest.fixture(scope="session")
def models(real_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    subprocess.run(
        [real_python, HERE / "make_models.py", directory],
        check=True,
        stdout=sys.stderr,
        env={"HOME": str(directory), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    return directory


@pytest.fixture(scope="session")
def running(
    real_python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealEngine]]:
    logs = tmp_path_factory.mktemp("engines")
    made = [
        RealEngine(real_python, model=models / "first", log=logs / f"engine-{number}.log")
        for number in range(2)
    ]
    try:
        start_all(made)
        yield made
    finally:
        for engine in made:
            engine.end()


@pytest.fixture(scope="session")
def checkpoints(running: list[RealEngine], models: Path) -> Checkpoints:
    """Asked of one engine; that the other one says the same is what the tests are about."""
    engine = running[0]

    def weights(name: str) -> Weights:
        engine.load(models / name)
        return Weights(models / name, engine.greedy(PROMPT))

    found = Checkpoints(
        weights("first"), weights("second"), weights("third"), models / "half", models / "empty"
    )
    assert len({found.first.text, found.second.text, found.third.text}) == 3
    return found


@pytest.fixture
def engines(running: list[RealEngine], checkpoints: Checkpoints) -> list[RealEngine]:
    """Both with the first weights, named ``1``, awake and idle."""
    dead = [engine for engine in running if not engine.alive()]
    for engine in dead:
        engine.kill()
    start_all(dead)
    for engine in running:
        engine.good("POST", "/wake_up")
        engine.good("POST", "/resume")
        engine.good("POST", "/abort_requests", {})
        engine.load(checkpoints.first.path)
        engine.good("POST", "/update_weight_version", {"new_version": "1"})
    return running
