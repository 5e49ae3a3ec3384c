"""The documentation: generated pages are up to date, links lead somewhere."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from scripts.gen_docs import MissingMarkersError, insert

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *#*$", re.MULTILINE)


def test_generated_pages_are_up_to_date(python: Callable[..., CompletedProcess[str]]) -> None:
    result = python("-m", "scripts.gen_docs", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_relative_links_lead_to_a_file_and_a_heading(sources: list[Path], root: Path) -> None:
    broken = []
    for page in sources:
        if page.suffix != ".md":
            continue
        for target in links(page.read_text()):
            path, _, anchor = target.partition("#")
            place = page if not path else (page.parent / path).resolve()
            if not place.exists() or not place.is_relative_to(root):
                broken.append(f"{page.relative_to(root)}: {target} does not exist")
            elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text()):
                broken.append(f"{page.relative_to(root)}: {target} has no such heading")
    assert broken == []


def links(markdown: str) -> Iterator[str]:
    """Targets inside the repository; what looks like a link in code is none."""
    text = CODE.sub("", FENCE.sub("", markdown))
    for match in LINK.finditer(text):
        if "://" not in match["target"] and not match["target"].startswith("mailto:"):
            yield match["target"]


def anchors(markdown: str) -> set[str]:
    """The anchors that code hosts make of headings: lower case, spaces to hyphens, no marks."""
    found: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", markdown)):
        title = re.sub(r"[^\w\- ]", "", match["title"].replace("`", "").lower()).replace(" ", "-")
        anchor, repeated = title, 0
        while anchor in found:
            repeated += 1
            anchor = f"{title}-{repeated}"
        found.add(anchor)
    return found


def test_links_and_anchors_are_read_as_a_code_host_does() -> None:
    page = "# A `b` (c)!\n## Two\n## Two\n[x](y.md#z) `[no](no)` [w](https://a.b)\n```\n# [q](q)\n```\n"
    assert list(links(page)) == ["y.md#z"]
    assert anchors(page) == {"a-b-c", "two", "two-1"}


def test_a_generated_part_replaces_what_is_between_its_markers() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n"
    once = insert(page, "x", "\nnew \\1\n\n")
    assert once == page.replace("old", "new \\1")
    assert insert(once, "x", "new \\1") == once
    assert insert(page, "y", "z") == page.replace("<!-- end y", "z\n<!-- end y")


def test_a_page_without_a_place_for_a_generated_part_is_an_error() -> None:
    for page in ("nothing", "<!-- begin x -->\n", "<!-- begin x -->\n<!-- end x -->\n" * 2):
        with pytest.raises(MissingMarkersError):
            insert(page, "x", "new")
