"""The example files can be used, show every key, and the page has a line for each."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from steersman.documents import Model, parse_documents
from steersman.documents.model import paths_of
from steersman_operator.manifests import ManifestDirectory
from steersman_operator.resources import SCHEMAS, read_resources, to_pools
from tests.manifests.support import MemoryLedger

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "rolloutengine.yaml"
PAGE = DOCS / "configuration" / "rolloutengine.md"
# It would contradict the key that is shown in its place.
INSTEAD = {"spec.source.external"}


def keys(data: Any, prefix: str = "") -> set[str]:
    """Every key of plain data, by its path as the schema names it."""
    if isinstance(data, list):
        return {prefix} | {path for item in data for path in keys(item, f"{prefix}[]")}
    if not isinstance(data, dict):
        return {prefix}
    return {prefix} | {
        path for key, value in data.items() for path in keys(value, f"{prefix}.{key}".lstrip("."))
    }


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_the_example_shows_every_key(kind: str) -> None:
    (data,) = (
        document.data
        for document in parse_documents(EXAMPLE.name, EXAMPLE.read_bytes())
        if document.data["kind"] == kind
    )
    assert set(paths_of(SCHEMAS[kind])) - INSTEAD <= keys(data)


def test_the_example_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "engines").write_text("sk-example-1\n")
    (tmp_path / "keys" / "engines-admin").write_text("sk-example-2\n")
    shutil.copy(EXAMPLE, tmp_path)
    directory = ManifestDirectory(tmp_path, ledger=MemoryLedger())
    directory.poll()
    assert directory.manifests.problems == ()
    pools = to_pools(directory.manifests.engines, directory.manifests.versions)
    assert (pools.conflicts, pools.warnings) == ({}, {})
    assert [engine.name for engine in pools.pools[0].engines] == ["math-0", "math-1"]


def test_the_small_examples_are_two_pools_and_a_version() -> None:
    resources = [
        resource
        for path in sorted((DOCS / "examples" / "up").iterdir())
        for resource in read_resources(
            parse_documents(path.name, path.read_bytes()), base=path.parent
        ).resources
    ]
    assert [f"{found.kind}/{found.name}" for found in resources] == [
        "RolloutEngine/llama",
        "RolloutEngine/qwen",
        "WeightVersion/qwen-v1",
    ]


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_every_key_has_a_meaning_and_a_line(kind: str) -> None:
    _, _, text = PAGE.read_text().partition(f"\n## {kind}\n")
    text = text.partition("\n## ")[0]
    tables = {
        heading.strip("# `"): part
        for heading, _, part in (part.partition("\n") for part in text.split("\n### "))
    }
    schema: type[Model] = SCHEMAS[kind]
    for path in paths_of(schema):
        section, _, key = path.rpartition(".")
        if path.startswith("spec.routing.") or any(name.startswith(path) for name in tables):
            continue
        assert f"| `{key}` |" in (tables[section] if section else text), path
    for line in text.splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


def test_the_page_has_the_example() -> None:
    assert f"```yaml\n{EXAMPLE.read_text()}```" in PAGE.read_text()
