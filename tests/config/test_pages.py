"""The pages of ``docs/configuration`` are complete; `make docs-check` tells if they are out of date."""

from pathlib import Path
from typing import Any

import pytest

from steersman.documents import Model, load_document
from steersman.documents.model import paths_of
from steersman_proxy.config.schema import ProxyConfig
from steersman_proxy.tablefile import TableFile

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "configuration"
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize(("page", "schema"), [("proxy", ProxyConfig), ("table", TableFile)])
def test_every_key_has_a_meaning_and_a_line(page: str, schema: type[Model]) -> None:
    text = (PAGES / f"{page}.md").read_text()
    headings = {line.strip("# `") for line in text.splitlines() if line.startswith("## `")}

    for path in paths_of(schema):
        section, _, key = path.rpartition(".")
        inside_overrides = path.startswith("pools.NAME.routing.")
        is_section = any(heading.split("[")[0].startswith(path) for heading in headings)
        assert inside_overrides or is_section or f"| `{key}` |" in text, path
        if not (inside_overrides or is_section) and section:
            assert section in headings, path


@pytest.mark.parametrize("page", ["proxy", "table"])
def test_no_key_lacks_a_description(page: str) -> None:
    for line in (PAGES / f"{page}.md").read_text().splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


@pytest.mark.parametrize("name", ["proxy", "table"])
def test_the_example_is_in_the_page_and_the_same_in_both_formats(name: str) -> None:
    example = EXAMPLES / f"{name}.yaml"

    assert f"```yaml\n{example.read_text()}```" in (PAGES / f"{name}.md").read_text()
    assert load_document(example).data == load_document(example.with_suffix(".toml")).data


def test_the_example_configuration_shows_every_key() -> None:
    def keys(data: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for key, value in data.items():
            path = f"{prefix}{key}".replace("pools.math", "pools.NAME")
            found.add(path)
            if isinstance(value, dict):
                found |= keys(value, f"{path}.")
        return found

    shown = keys(load_document(EXAMPLES / "proxy.yaml").data)
    # Each of these would contradict the key that is shown in its place; `control` the table.
    instead = {"auth.apiKeysFile", "auth.adminKeyFile", "pools.NAME.engineAuth.apiKeyFile"}
    wanted = {
        path
        for path in paths_of(ProxyConfig)
        if path not in instead and not path.startswith(("pools.NAME.routing.", "control"))
    }
    assert wanted <= shown
