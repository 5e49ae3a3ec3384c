"""Many seeds, on two processors; what fails leaves a file that `steersman replay` reads."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from steersman_operator.fleet.record import Recorder
from steersman_operator.fleet.state import State
from steersman_operator.fleet.step import step
from tests.fleet.world.manager import Manager
from tests.fleet.world.proxy import ModelProxy
from tests.fleet.world.world import TIMING, World

WORKERS = 2


class Finding(msgspec.Struct, frozen=True):
    """A seed that breaks a rule."""

    seed: int
    problem: str
    records: tuple[str, ...] = ()
    """One file for each operator process of that world."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.problem}"]
        return "\n  ".join([*lines, *(f"steersman replay {path}" for path in self.records)])


class Tally(msgspec.Struct, frozen=True):
    """What came of some seeds."""

    events: int
    """Of the whole worlds."""
    steps: int
    """Of the core."""
    findings: tuple[Finding, ...]


def run_seed(
    seed: int, *, managers: type[Manager] = Manager, proxies: type[ModelProxy] = ModelProxy
) -> tuple[World, str | None]:
    """Run one world; returns it and what went wrong."""
    world = World(seed, managers=managers, proxies=proxies)
    try:
        world.run()
    except AssertionError as error:
        return world, f"at {world.scheduler.time:.3f}: {error!s}"
    except Exception as error:  # noqa: BLE001 - any other fault of the core is a finding too
        return world, f"at {world.scheduler.time:.3f}: {error!r}"
    return world, None


def write_records(world: World, folder: Path) -> tuple[str, ...]:
    """The events of each operator process, with the digest of the state after each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for manager in world.past:
        path = folder / f"seed-{world.seed}-{manager.name}.jsonl"
        with path.open("wb") as file:
            state = State()
            recorder = Recorder(file, timing=TIMING, state=state)
            for event in manager.events:
                recorder.record(event)
                try:
                    state, _ = step(state, event, timing=TIMING)
                except Exception:  # noqa: BLE001 - the record ends where the core does
                    break
                recorder.check(state)
        paths.append(str(path))
    return tuple(paths)


def run_seeds(seeds: Iterable[int], folder: str | None = None) -> Tally:
    """Run worlds one after the other."""
    events = steps = 0
    findings = []
    for seed in seeds:
        world, problem = run_seed(seed)
        events += world.scheduler.events
        steps += sum(len(manager.events) for manager in world.past)
        if problem is not None:
            records = write_records(world, Path(folder)) if folder is not None else ()
            findings.append(Finding(seed, problem, records))
    return Tally(events, steps, tuple(findings))


def search(seeds: Sequence[int]) -> Tally:
    """Run many worlds in two processes."""
    folder = os.environ.get("STEERSMAN_RECORDS") or str(
        Path(tempfile.gettempdir()) / "steersman-records"
    )
    shares = [seeds[start :: WORKERS * 4] for start in range(WORKERS * 4)]
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as workers:
        tallies = list(workers.map(run_seeds, shares, [folder] * len(shares)))
    findings = sorted(
        (finding for tally in tallies for finding in tally.findings), key=lambda one: one.seed
    )
    return Tally(
        sum(tally.events for tally in tallies),
        sum(tally.steps for tally in tallies),
        tuple(findings),
    )
