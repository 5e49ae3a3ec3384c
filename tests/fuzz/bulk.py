"""Many examples of seeds, one after the other, and the first one that fails made small."""

from collections.abc import Callable, Iterable

from tests.fuzz.checking import check, same_fault
from tests.fuzz.example import Example, dump
from tests.fuzz.examples import example
from tests.fuzz.expected import predict
from tests.fuzz.shrink import SECONDS, shrink
from tests.fuzz.source import of_seed
from tests.fuzz.world import World


class Found(Exception):
    """A failing example; ``str()`` is what to read and what to paste into the corpus."""


def run_seeds(
    world: World,
    seeds: Iterable[int],
    *,
    cuts_every: int = 4,
    seconds: float = SECONDS,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Check the example of each seed; how many there were. Raises :class:`Found`.

    Every ``cuts_every``-th is also run without its cuts; a failure is shrunk for so many seconds.
    """
    count = 0
    for seed in seeds:
        if stop():
            break
        made = example(of_seed(seed))
        cuts = seed % cuts_every == 0
        faults = check(world, made, cuts=cuts)
        if faults:
            raise Found(
                report(world, made, faults, cuts=cuts, seconds=seconds, name=f"seed {seed}")
            )
        count += 1
    return count


def report(
    world: World, made: Example, faults: list[str], *, cuts: bool, seconds: float, name: str
) -> str:
    """What is wrong with an example, after making it small."""

    def fails(smaller: Example) -> bool:
        return any(same_fault(fault, faults[0]) for fault in check(world, smaller, cuts=cuts))

    small = shrink(made, fails, seconds=seconds)
    faults = check(world, small, cuts=cuts)
    prediction = predict(small)
    lines = [f"{name}:", *(f"  {fault}" for fault in faults)]
    lines.append(f"  (the model: then {prediction.tail.value}, {prediction.why or 'as told'})")
    lines += ["As a file of tests/fuzz/corpus:", "", dump(small)]
    return "\n".join(lines)
