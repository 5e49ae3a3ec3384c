"""Where the values of a text are, to the character."""

import pytest

from steersman.documents import Node, source_of
from steersman.errors import DocumentError


def pieces(text: str, node: Node) -> object:
    """The text of every value, in the shape of the data."""
    if node.members is not None:
        return {key: pieces(text, value) for key, (_, value) in node.members.items()}
    if node.items is not None:
        return [pieces(text, item) for item in node.items]
    return text[node.start : node.end]


def test_every_value_is_found_as_it_is_written() -> None:
    text, (top,) = source_of(
        "f.yaml",
        b"\xef\xbb\xbf# c\na: 'x y' # d\nb:\n- &n 1\n- {c: \"2\", d: [*n, ]}\ne: |-\n  t\nf: !!str 3\ng:\n",
    )
    assert pieces(text, top) == {
        "a": "'x y'",
        "b": ["&n 1", {"c": '"2"', "d": ["*n"]}],
        "e": "|-\n  t\n",
        "f": "!!str 3",
        "g": "",
    }
    assert top.members is not None
    assert [text[key.start : key.end] for key, _ in top.members.values()] == list("abefg")


def test_a_block_ends_behind_its_last_word() -> None:
    text, (top,) = source_of("f.yaml", b"a:\n  b:\n  - c: 1 # x\n  # y\n\nd: 2\n")
    node = top.member("a")
    assert node is not None
    assert text[: node.written_end].endswith("c: 1")
    assert text[node.start : node.end].endswith("# y\n\n")


def test_tabs_of_json_count_as_characters() -> None:
    text, (top,) = source_of("f.json", b'{\n\t"a": {\n\t\t"b": "c"}\n}\n')
    assert pieces(text, top) == {"a": {"b": '"c"'}}


def test_documents_without_content_are_left_out() -> None:
    text, tops = source_of("f.yaml", b"# a\n---\n---\na: 1\n---\n~\n---\nb: 2\n")
    assert [pieces(text, top) for top in tops] == [{"a": "1"}, {"b": "2"}]


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", b"a: \x00"])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(DocumentError):
        source_of("f.yaml", content)
