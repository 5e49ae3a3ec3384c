"""``make test-real``: prepare the real engine where its progress can be seen, and run its tests.

python -m tests.real_engine [PYTEST ARGUMENTS]
python -m tests.real_engine lock                  pin the packages again
"""

import sys
from pathlib import Path

import pytest

from tests.real_engine import environment


def main(arguments: list[str]) -> int:
    """Exit code of the tests; 0 if they are left out on request."""
    if arguments == ["lock"]:
        environment.lock()
        return 0
    if environment.left_out():
        print(f"{environment.LEFT_OUT}: nothing was tested")
        return 0
    environment.python()
    here = str(Path(__file__).parent)
    return int(pytest.main(["-m", "real_engine", *(arguments or [here])]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
