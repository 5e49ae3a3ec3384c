"""One example, through every adapter: against the model, against each other, against other cuts."""

from tests.fuzz.example import Example
from tests.fuzz.expected import predict
from tests.fuzz.judge import compare, judge
from tests.fuzz.world import World
from tests.http.adapter import KINDS


def check(world: World, example: Example, *, cuts: bool = False) -> list[str]:
    """All that is wrong; empty if nothing is. ``cuts``: also run it without any cut."""
    runs = [world.run(example, kind) for kind in KINDS]
    faults = [
        f"{kind}: {fault}"
        for kind, run in zip(KINDS, runs, strict=True)
        for fault in judge(example, run)
    ]
    if faults or predict(example).timed:
        return faults
    for kind, run in zip(KINDS[1:], runs[1:], strict=True):
        faults += [f"{KINDS[0]} or {kind}: {fault}" for fault in compare(example, runs[0], run)]
    if cuts and not faults:
        whole = example.whole()
        for kind, run in zip(KINDS, runs, strict=True):
            other = world.run(whole, kind)
            faults += [f"{kind}, cut or not: {fault}" for fault in compare(whole, run, other)]
    return faults


def same_fault(one: str, other: str) -> bool:
    """Whether two faults are of one kind, as far as a shrinker must care."""
    return one[:40] == other[:40]
