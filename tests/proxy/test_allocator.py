"""Memory that one large body has needed goes back to the system."""

import subprocess
import sys

import pytest

# Of a process of its own, since what an allocator has learnt cannot be taken back.
PROGRAM = """
import sys
from steersman_proxy import allocator
if sys.argv[1] == "tuned" and not allocator.tune():
    print("unknown")
    sys.exit()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = resident()
kept = []
for _ in range(8):
    # A large block that is freed, and something small that outlives it behind it.
    block = bytearray(4 << 20)
    del block
    blocks = [bytearray(1 << 20) for _ in range(8)]
    kept.append(bytes(1000))
    del blocks[::2]
    kept.append([bytes(700) for _ in range(10)])
    del blocks
print(resident() - before)
"""


def grown(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    if done.stdout.strip() == "unknown":
        pytest.skip("the C library of this system has no mallopt")
    return int(done.stdout)


def test_large_blocks_leave_nothing_behind() -> None:
    assert grown("tuned") < 1 << 20
