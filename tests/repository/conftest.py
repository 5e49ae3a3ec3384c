"""What the repository's own tests share: where it is, and which files it consists of."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    """``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def sources() -> list[Path]:
    """Every file that is, or with the next ``git add`` would be, part of the repository.

    New files count before they are committed: that is when a mistake is still cheap.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files belong to the repository")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = {ROOT / name for name in listing.stdout.split("\0") if name}
    return sorted(path for path in paths if path.is_file())


def run_python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter of this environment, told nothing by environment variables of Python."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="session")
def python() -> Any:
    """:func:`run_python`, as a fixture because test modules do not import each other."""
    return run_python
