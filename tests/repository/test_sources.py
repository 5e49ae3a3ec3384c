"""Rules for every file of the repository."""

import re
from pathlib import Path

import pytest

MAX_LINES = 500

# Put together here, so that this file does not break its own rule.
HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("maven", "apache", "org"),
        ("maven", "org"),
        ("deb", "debian", "org"),
    ]
]
FOLDERS = ["/" + "work", "/" + "root", "/" + "opt/wheels"]
PLACES = re.compile(
    "|".join(
        [rf"\b{re.escape(host)}\b" for host in HOSTS]
        + [rf"(?<![\w.~-]){re.escape(folder)}(?=/)" for folder in FOLDERS]
    )
)


def test_the_pattern_finds_places_and_only_those() -> None:
    for folder in FOLDERS:
        assert PLACES.search(f"see {folder}/x")
        assert PLACES.search(f'"{folder}/"')
        assert not PLACES.search(f"net{folder}/x")
        assert not PLACES.search(f"{folder}ers")
    for host in HOSTS:
        assert PLACES.search(f"https://{host}/simple")
        assert not PLACES.search(f"{host}anization")


def test_no_file_names_a_build_machine_or_a_registry(sources: list[Path], root: Path) -> None:
    """Such names work for the author alone, and end in somebody's log as a failed download."""
    found = []
    for path in sources:
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode().splitlines(), 1):
            if match := PLACES.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {match[0]}")
    assert found == []


def test_no_module_is_too_long_to_read(sources: list[Path], root: Path) -> None:
    lengths = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for path in sources
        if path.suffix == ".py"
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_text_files_end_with_one_newline(sources: list[Path], root: Path) -> None:
    found = []
    for path in sources:
        content = path.read_bytes()
        if b"\0" in content or not content:
            continue
        if not content.endswith(b"\n") or content.endswith(b"\n\n") or b"\r\n" in content:
            found.append(str(path.relative_to(root)))
    assert found == []


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_visitor_finds_what_they_look_for(root: Path, name: str) -> None:
    assert (root / name).stat().st_size > 0
