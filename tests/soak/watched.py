"""``python -m tests.soak.watched ...`` is ``steersman ...``, and tells what is alive in it.

On SIGUSR1 it writes a census of its objects into the file that the environment variable ``CENSUS``
names: of the product's own classes, of the event loop's and aiohttp's, and the tasks that are not
done. Two of them at rest, before and after a load, show whatever a request leaves behind, without
knowing what that could be.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from steersman import cli

OWNERS = ("steersman", "steersman_proxy", "uvloop", "asyncio", "aiohttp")


def census() -> dict[str, int]:
    """How many objects of each class there are, and how many blocks of memory for all objects."""
    gc.unfreeze()  # what the command has put beside at its start is not listed otherwise
    gc.collect()
    found = Counter({"blocks of memory": sys.getallocatedblocks()})
    for one in gc.get_objects():
        kind = type(one)
        if str(kind.__module__).partition(".")[0] in OWNERS:
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
        # Not `isinstance`, which would wake lazy objects.
        if issubclass(kind, asyncio.Task) and not one.done():
            found[f"task {one.get_coro().__qualname__}"] += 1
    return dict(found)


def write_census(*_: Any) -> None:
    file = Path(os.environ["CENSUS"])
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(census()))
    draft.rename(file)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, write_census)
    sys.exit(cli.main())
