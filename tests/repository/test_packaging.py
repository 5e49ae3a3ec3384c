"""The distribution: what is in the wheel, what it registers, and that it shadows nothing."""

import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"steersman", "steersman_proxy", "steersman_sim", "steersman_operator"}
GROUP = "steersman.commands"
DECLARED: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "entry-points"
][GROUP]

Python = Callable[..., CompletedProcess[str]]


def test_the_folder_operator_is_not_a_package(root: Path) -> None:
    assert not (root / "operator" / "__init__.py").exists()


def test_the_standard_library_operator_wins_in_the_repository_root(
    python: Python, root: Path
) -> None:
    # Forget the copy that the interpreter's start may have imported already.
    program = (
        "import sys; sys.modules.pop('operator', None); import operator; "
        "print(operator.itemgetter(1)('ab'), operator.__file__)"
    )
    result = python("-c", program, cwd=root)
    assert result.returncode == 0, result.stderr
    letter, place = result.stdout.split(maxsplit=1)
    assert letter == "b"
    assert Path(place.strip()).name == "operator.py"


@pytest.fixture(scope="module")
def wheel(python: Python, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built by the backend of this environment; nothing is fetched."""
    target = tmp_path_factory.mktemp("wheel")
    result = python("-m", "hatchling", "build", "--target", "wheel", "--directory", str(target))
    assert result.returncode == 0, result.stderr
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_has_our_packages_and_nothing_else(
    wheel: zipfile.ZipFile, project: dict[str, Any]
) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert top == PACKAGES | {f"steersman-{project['project']['version']}.dist-info"}


def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert [name for name in names if name.endswith("/LICENSE")]
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_commands_are_the_declared_ones() -> None:
    installed = {
        entry.name: f"{entry.value}"
        for entry in entry_points(group=GROUP)
        if entry.dist is not None
    }
    assert installed == DECLARED, "pyproject.toml changed since the installation: run `make venv`"


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_each_command_loads(name: str) -> None:
    (entry,) = entry_points(group=GROUP, name=name)
    command = entry.load()
    assert command.help
    assert callable(command.configure)
    assert callable(command.run)
