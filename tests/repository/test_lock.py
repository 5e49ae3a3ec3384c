"""``requirements.lock`` is what a fresh machine installs: complete, in step, and bound to no place."""

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN = re.compile(
    r"^(?P<requirement>\S+==[^\s;]+(?: ; [^\\]+?)?)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def pins(text: str) -> dict[str, list[Requirement]]:
    """Pinned requirements by name; several if Python versions differ."""
    found: dict[str, list[Requirement]] = {}
    for match in PIN.finditer(text):
        requirement = Requirement(match["requirement"])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_everything_is_pinned_with_hashes(text: str) -> None:
    rest = re.sub(r"^ *#.*\n", "", PIN.sub("", text), flags=re.MULTILINE)
    assert rest.strip() == ""


def test_every_direct_dependency_is_pinned_within_its_range(
    pins: dict[str, list[Requirement]], project: dict[str, Any]
) -> None:
    direct = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for lines in project["project"]["optional-dependencies"].values():
        direct += lines
    for line in direct:
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name == "steersman":
            continue
        assert name in pins, f"{line} is not in requirements.lock: run `make lock`"
        for pin in pins[name]:
            (version,) = (spec.version for spec in pin.specifier)
            assert wanted.specifier.contains(version, prereleases=True), (
                f"{line} excludes the locked {version}: run `make lock`"
            )


def test_it_names_no_place(text: str) -> None:
    assert "://" not in text
    assert " @ " not in text
    assert "file:" not in text
    assert not re.search(r"^ *--(?!hash=)", text, re.MULTILINE)
    assert not re.search(r"#.*(?<![\w.])/", text)
