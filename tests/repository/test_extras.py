"""A missing extra is named in one line, instead of a traceback about a library nobody has heard of.

``pip install steersman`` alone must give a program that can say what else to install.
"""

import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
COMMANDS: dict[str, str] = PROJECT["entry-points"]["steersman.commands"]

Python = Callable[..., CompletedProcess[str]]

WITHOUT_EXTRAS = """
import sys

for name in {blocked!r}:
    sys.modules[name] = None  # as if it were not installed

from steersman.cli import main

sys.exit(main({arguments!r}))
"""


def optional_imports() -> list[str]:
    """The import names of everything that only an extra of ours brings."""
    optional = {
        canonicalize_name(Requirement(line).name)
        for name, lines in PROJECT["optional-dependencies"].items()
        if name != "dev"
        for line in lines
    } - {"steersman"}
    return sorted(
        module
        for module, distributions in packages_distributions().items()
        if optional & {canonicalize_name(name) for name in distributions}
    )


def run_without_extras(python: Python, *arguments: str) -> CompletedProcess[str]:
    program = WITHOUT_EXTRAS.format(blocked=optional_imports(), arguments=list(arguments))
    return python("-c", program)


def test_what_is_blocked_is_what_the_extras_bring() -> None:
    assert {"aiohttp", "pydantic", "prometheus_client", "ruamel"} <= set(optional_imports())
    assert "msgspec" not in optional_imports()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_without_its_extra_names_it(python: Python, command: str) -> None:
    result = run_without_extras(python, command, "--help")
    if result.returncode == 0 and command != "proxy":
        return  # needs no library of its extra until it runs
    extra = COMMANDS[command].rpartition("[")[2].rstrip("]")
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"steersman {command}: the library ")
    assert line.endswith(f"pip install 'steersman[{extra}]'")


def test_the_program_itself_needs_no_extra(python: Python) -> None:
    assert run_without_extras(python, "--version").returncode == 0
    listing = run_without_extras(python, "--help")
    assert listing.returncode == 0, listing.stderr
    assert "steersman[proxy]" in listing.stdout
