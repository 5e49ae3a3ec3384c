"""Files of several documents, in YAML and JSON: each document keeps the lines of the file."""

import pytest

from steersman.documents import parse_documents
from steersman.documents.yaml12 import MAX_DOCUMENTS
from steersman.errors import DocumentError


def read(text: str, name: str = "f.yaml") -> list[dict[str, object]]:
    return [document.data for document in parse_documents(name, text.encode())]


def problems(text: str, name: str = "f.yaml") -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse_documents(name, text.encode())
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\na: 1\n...\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("# nothing\n---\n---\na: 1\n---\n# only words\n", [{"a": 1}]),
        ("", []),
        ("# nothing at all\n", []),
    ],
)
def test_documents_without_content_are_left_out(text: str, expected: list[object]) -> None:
    assert read(text) == expected


def test_a_key_is_found_at_its_line_of_the_file() -> None:
    first, second = parse_documents("f.yaml", b"a: 1\n---\n# b is next\nb:\n  c: 2\n")
    assert first.problem(("a",), "is bad") == "f.yaml:1: a: is bad"
    assert second.problem(("b", "c"), "is bad") == "f.yaml:5: b.c: is bad"


def test_an_anchor_ends_with_its_document() -> None:
    assert problems("a: &x 1\n---\nb: *x\n") == [
        "f.yaml:3: has an alias (`*`) of an anchor (`&`) that does not come before it"
    ]


def test_each_document_needs_keys_at_its_top() -> None:
    assert problems("a: 1\n---\n- b\n---\nc\n") == [
        "f.yaml:3: must have keys at its top, found a list",
        "f.yaml:5: must have keys at its top, found a single value",
    ]


def test_a_fault_of_syntax_is_told_with_the_flaws_before_it() -> None:
    assert problems("a: 1\na: 2\n---\nb: [\n") == [
        "f.yaml:2: a: is given twice, first in line 1; keep one of them",
        "f.yaml:5: is not valid YAML: expected the node content, but found '<stream end>'",
    ]


def test_documents_without_end_are_refused() -> None:
    text = "a: 1\n---\n" * (MAX_DOCUMENTS + 1)
    assert problems(text) == [
        (
            f"f.yaml:{2 * MAX_DOCUMENTS}: begins another document after {MAX_DOCUMENTS}; "
            "use several files"
        )
    ]


def test_json_is_read_with_lines_also_where_tabs_indent_it() -> None:
    text = '{\n\t"a": {\n\t\t"b": "x\\ty",\n \t"c": true\n\t}\n}\n'
    (document,) = parse_documents("f.json", text.encode())
    assert document.data == {"a": {"b": "x\ty", "c": True}}
    assert document.source(("a", "c")) == "f.json:4"
