"""Run a program, and end it with all that it has started when asked to or when the parent dies.

    python guard.py PARENT COMMAND [ARGUMENTS]

vLLM itself loses a SIGTERM that comes while it starts, and leaves its engine core behind when it is
killed. PARENT is the process that has started this one, as the leader of a process group: it ends the
whole group.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

PATIENCE = 15.0
"""Seconds that the program gets to end by itself."""

PR_SET_PDEATHSIG = 1


class _Asked(BaseException):
    """SIGTERM has come."""


def _asked(_number: int, _frame: FrameType | None) -> None:
    raise _Asked


def main(command: list[str], *, parent: int) -> int:
    """Exit code of the program; after SIGTERM there is none, since nothing of the group is left."""
    program = None
    try:
        signal.signal(signal.SIGTERM, _asked)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise _Asked  # it died before that was in place
        program = subprocess.Popen(command)
        return program.wait()
    except _Asked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if program is not None:
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(timeout=PATIENCE)
        os.killpg(0, signal.SIGKILL)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], parent=int(sys.argv[1])))
