"""``make fuzz``: fresh examples for a while, over memory and over sockets.

    python -m tests.fuzz --seconds 600
    python -m tests.fuzz --seed 17 --count 1      one example again

Ends with status 1 at the first failure and prints it as text for the corpus.
"""

import argparse
import itertools
import random
import sys
import time

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from tests.fuzz.bulk import Found, run_seeds
from tests.fuzz.checking import check
from tests.fuzz.example import Example, dump
from tests.fuzz.examples import example
from tests.fuzz.sockets import SocketWorld
from tests.fuzz.source import Source, sources
from tests.fuzz.world import World

ROUND = 2000
"""Seeds between two reports; then come a tenth of it over sockets and as many of Hypothesis."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, help="the first seed (default: a random one)")
    parser.add_argument("--count", type=int, help="only so many examples, over memory")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"fuzz: seeds from {first}", flush=True)
    began = time.monotonic()

    def over() -> bool:
        return bool(time.monotonic() - began > options.seconds)

    try:
        if options.count is not None:
            with World() as world:
                run_seeds(world, range(first, first + options.count))
            return 0
        total = 0
        for start in itertools.count(first, ROUND):
            with World() as world:
                total += run_seeds(world, range(start, start + ROUND), stop=over)
                if not over():
                    total += _hypothesis(world, start, ROUND // 10)
            with SocketWorld() as world:
                total += run_seeds(world, range(start, start + ROUND // 10), stop=over)
            print(f"fuzz: {total} examples, {time.monotonic() - began:.0f} s", flush=True)
            if over():
                break
    except Found as found:
        print(found)
        return 1
    print("fuzz: nothing found")
    return 0


def _hypothesis(world: World, start: int, count: int) -> int:
    """The same generators with Hypothesis' choices, which go for what was rare so far."""
    last: list[tuple[Example, list[str]]] = []

    @hypothesis_seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.reuse, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(sources())
    def examples(source: Source) -> None:
        made = example(source)
        faults = check(world, made)
        if faults:
            last[:] = [(made, faults)]
            raise AssertionError(faults[0])

    try:
        examples()
    except AssertionError:
        made, faults = last[0]
        text = "\n  ".join(faults)
        raise Found(f"Hypothesis, seed {start}:\n  {text}\n\n{dump(made)}") from None
    return count


if __name__ == "__main__":
    sys.exit(main())
