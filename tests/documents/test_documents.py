"""Files in YAML and TOML: what they mean, where it stands, and what is said of bad ones."""

import os
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steersman.documents import Document, load_document, parse_document
from steersman.documents.document import WrittenFloat, WrittenInt, dotted
from steersman.documents.yaml12 import MAX_VALUES
from steersman.errors import DocumentError


def problems(text: str | bytes, name: str = "f.yaml") -> list[str]:
    """What is said of a file with this content."""
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(DocumentError) as caught:
        parse_document(name, content)
    assert caught.value.path == name
    return caught.value.problems


def read_or_refuse(name: str, content: bytes) -> Document | list[str]:
    """A document or what is wrong with it; any other outcome is a failure."""
    try:
        return parse_document(name, content)
    except DocumentError as error:
        return error.problems


def data(text: str, name: str = "f.yaml") -> dict[str, object]:
    return parse_document(name, text.encode()).data


# --- YAML 1.2 ----------------------------------------------------------------------------------


def test_words_of_yaml_1_1_stay_text() -> None:
    read = data(
        "a: yes\nb: no\nc: on\nd: OFF\ne: y\nf: 12:30:45\ng: 2024-01-01\nh: 0b1\ni: 1_000\n"
    )

    assert list(read.values()) == [
        "yes", "no", "on", "OFF", "y", "12:30:45", "2024-01-01", "0b1", "1_000",
    ]  # fmt: skip


def test_core_schema_of_yaml_1_2() -> None:
    read = data(
        "a: true\nb: False\nc: null\nd: ~\ne:\nf: 0o17\ng: 0x1F\nh: -.inf\ni: 1e3\nj: +12\n"
    )

    assert list(read.values()) == [True, False, None, None, None, 15, 31, float("-inf"), 1000.0, 12]


@pytest.mark.parametrize("text", ["10", "042", "1.10", "1e3", "0x10", "0o17", "+7", "-0", ".5"])
def test_a_number_keeps_its_text(text: str) -> None:
    (value,) = data(f"a: {text}\n").values()

    assert isinstance(value, WrittenInt | WrittenFloat)
    assert value.text == text


def test_quotes_and_tags_make_text_of_numbers() -> None:
    assert data("a: '10'\nb: \"10\"\nc: !!str 10\nd: ! 10\n") == dict.fromkeys("abcd", "10")


def test_keys_are_their_text() -> None:
    assert data("042: a\nnull: b\n1.10: c\n") == {"042": "a", "null": "b", "1.10": "c"}


def test_aliases_stand_for_their_anchor() -> None:
    document = parse_document("f.yaml", b"a: &x\n  k: 1\nb: *x\nc: [*x]\n")

    assert document.data == {"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]}
    assert document.problem(("c", 0, "k"), "wrong") == "f.yaml:2: c[0].k: wrong"


def test_the_line_of_each_key_and_item_is_known() -> None:
    document = parse_document(
        "f.yaml", b"a:\n  - b: 1\n    c: >\n      text\n\n  - {d: 2,\n e: 3}\n"
    )

    lines = {
        (): 1, ("a",): 1, ("a", 0): 2, ("a", 0, "b"): 2, ("a", 0, "c"): 3, ("a", 1): 6,
        ("a", 1, "d"): 6, ("a", 1, "e"): 7,
    }  # fmt: skip
    for path, line in lines.items():
        place = document.place(path)
        assert place is not None
        assert place.line == line, path
    assert document.problem(("a", 0, "missing"), "wrong") == "f.yaml:2: a[0].missing: wrong"


def test_every_duplicate_is_told_with_both_lines() -> None:
    assert problems("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n") == [
        "f.yaml:4: c: is given twice, first in line 3; keep one of them",
        "f.yaml:5: a: is given twice, first in line 1; keep one of them",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.yaml: is empty; write at least one key, or leave the file out"),
        ("# nothing\n---\n", "f.yaml: is empty; write at least one key, or leave the file out"),
        ("- a\n", "f.yaml:1: must have keys at its top, found a list"),
        ("text\n", "f.yaml:1: must have keys at its top, found a single value"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: begins a second document; put one document into a file"),
        ("a:\n\tb: 1\n", "f.yaml:2: is not valid YAML: a tab cannot start a value or indent; use spaces"),
        (
            "a: b: c\n",
            ("f.yaml:1: is not valid YAML: mapping values are not allowed here; is a line indented "
            "otherwise than its neighbours, or a value to be quoted?"),
        ),
        (
            '{"a": 1}x\n',
            "f.yaml:1: is not valid YAML: expected '<document start>', but found '<scalar>'",
        ),
        (
            "a: [1,\nb: 2\n",
            ("f.yaml:3: is not valid YAML: expected ',' or ']', but got '<stream end>' "
            "(while parsing a flow sequence that begins in line 1)"),
        ),
        ("a: *x\n", "f.yaml:1: has an alias (`*`) of an anchor (`&`) that does not come before it"),
        ("a: &x [*x]\n", "f.yaml:1: has an alias inside the value that it stands for"),
        ("a: {<<: {b: 1}}\n", "f.yaml:1: uses the merge key `<<`, which YAML 1.2 does not have; repeat the keys"),
        ("a: !!python/name:os.system x\n", "f.yaml:1: has a tag (`!`), which has no meaning here; delete it"),
        ("? [a]\n: b\n", "f.yaml:1: has a mapping or list where a key should be; a key must be text"),
        ("%YAML 1.1\n---\na: yes\n", "f.yaml:1: is marked as YAML 1.1; only YAML 1.2 is read, delete the mark"),
        ("a: \x07\n", "f.yaml:1: has the control character U+0007; is it a text file?"),
        ("a: " + "9" * 5000, "f.yaml:1: is a number of more than 400 digits"),
    ],
)  # fmt: skip
def test_bad_yaml_is_told_in_one_sentence(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_deep_nesting_is_refused_in_both_formats() -> None:
    assert problems("a: " + "[" * 10_000) == ["f.yaml:1: is nested more than 32 levels deep"]
    assert problems("a = " + "[" * 10_000, "f.toml") == [
        "f.toml: is nested more than 32 levels deep"
    ]
    assert problems("[" + ".".join("a" * 40) + "]", "f.toml") == [
        "f.toml: is nested more than 32 levels deep"
    ]


def test_an_alias_bomb_is_refused() -> None:
    bomb = "a0: &a0 [" + "x, " * 20 + "]\n"
    bomb += "".join(
        f"a{level}: &a{level} [" + f"*a{level - 1}, " * 20 + "]\n" for level in range(1, 12)
    )

    (problem,) = problems(bomb)

    assert problem == f"f.yaml:5: has more than {MAX_VALUES:,} values, its aliases followed"


# --- TOML --------------------------------------------------------------------------------------

TOML = """\
top = 1
[a.b]
"quoted key" = { c = 1, d.e = 0x1_0 }
list = [
  1,  # a comment
  { f = 2 },
]
[[p]]
n = 1.10
[[p]]
  [[p.q]]
  when = 2024-01-01
  [[p.q]]
[p.r]
s = "x"
"""


def test_toml_places() -> None:
    document = parse_document("f.toml", TOML.encode())

    lines = {
        ("top",): 1, ("a", "b"): 2, ("a", "b", "quoted key", "c"): 3,
        ("a", "b", "quoted key", "d", "e"): 3, ("a", "b", "list", 0): 5,
        ("a", "b", "list", 1, "f"): 6, ("p", 0): 8, ("p", 0, "n"): 9, ("p", 1): 10,
        ("p", 1, "q", 0, "when"): 12, ("p", 1, "q", 1): 13, ("p", 1, "r", "s"): 15,
    }  # fmt: skip
    for path, line in lines.items():
        assert document.source(path) == f"f.toml:{line}", path


def test_toml_numbers_keep_their_text_and_dates_are_text() -> None:
    read = parse_document("f.toml", TOML.encode()).data

    assert read["p"][0]["n"].text == "1.10"
    assert read["a"]["b"]["quoted key"]["d"]["e"].text == "0x1_0"
    assert read["a"]["b"]["quoted key"]["d"]["e"] == 16
    assert read["p"][1]["q"][0]["when"] == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.toml: is empty; write at least one key, or leave the file out"),
        ("# nothing\n", "f.toml: is empty; write at least one key, or leave the file out"),
        ("a = 1\na = 2\n", "f.toml:2: is not valid TOML: Cannot overwrite a value (a key or table is given twice)"),
        ("[a]\nb = 1\n[a]\n", "f.toml:3: is not valid TOML: Cannot declare ('a',) twice (a key or table is given twice)"),
        ("a = 042\n", "f.toml:1: is not valid TOML: Expected newline or end of document after a statement"),
        ("a = [1,\n", "f.toml:2: is not valid TOML: Invalid value"),
        ("a: 1\n", "f.toml:1: is not valid TOML: Expected '=' after a key in a key/value pair"),
        ("a = " + "9" * 5000, "f.toml: has a number with too many digits"),
    ],
)  # fmt: skip
def test_bad_toml_is_told_in_one_sentence(text: str, problem: str) -> None:
    assert problems(text, "f.toml") == [problem]


_bare = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=4)
_quoted = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=4)
_toml_values = st.recursive(
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.floats(allow_nan=False),
        _quoted,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_bare | _quoted, inner, max_size=3),
    max_leaves=8,
)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case list():
            return "[\n" + ",\n".join(_toml(item) for item in value) + "]"
        case dict():
            inner = ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
            return f"{{{inner}}}"
    raise AssertionError(value)


@given(st.dictionaries(_bare | _quoted, _toml_values, min_size=1, max_size=4))
def test_both_toml_parsers_see_the_same_tree(value: dict[str, object]) -> None:
    """Every value that one parser reads has a place from the other, with its text if a number."""
    text = "".join(f"{_toml(key)} = {_toml(item)}\n" for key, item in value.items())
    document = parse_document("f.toml", text.encode())

    def walk(path: tuple[str | int, ...], found: object) -> None:
        place = document.place(path)
        assert place is not None
        if isinstance(found, dict):
            assert isinstance(place.children, dict)
            assert place.children.keys() == found.keys()
            for key, item in found.items():
                walk((*path, key), item)
        elif isinstance(found, list):
            assert isinstance(place.children, list)
            assert len(place.children) == len(found)
            for position, item in enumerate(found):
                walk((*path, position), item)
        elif isinstance(found, int | float) and not isinstance(found, bool):
            assert isinstance(found, WrittenInt | WrittenFloat)
            assert type(found).__mro__[1](found.text.replace("_", "")) == found

    assert document.data == value
    walk((), document.data)


# --- Files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.json", "a", "a.yaml.bak", ".yaml"])
def test_other_extensions_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("a: 1\n")

    with pytest.raises(DocumentError, match=r"must end in \.yaml, \.yml or \.toml"):
        load_document(path)


def test_extensions_in_capitals_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.YAML").write_text("a: 1\n")

    assert load_document(tmp_path / "a.YAML").data == {"a": 1}


def test_unreadable_files_are_told_by_cause(tmp_path: Path) -> None:
    (tmp_path / "dir.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (8 * 1024**2 + 1))
    expected = {
        "none.yaml": "does not exist; check the path",
        "dir.yaml": "is a directory; name a file in it",
        "loop.yaml": "cannot be read: Too many levels of symbolic links",
        "pipe.yaml": "is not a regular file",
        "big.yaml": "is larger than 8 MiB",
    }
    for name, message in expected.items():
        with pytest.raises(DocumentError) as caught:
            load_document(tmp_path / name)
        assert caught.value.problems == [f"{tmp_path / name}: {message}"]


def test_bytes_that_are_not_text() -> None:
    assert problems(b"a: 1\nb: \xff\n") == [
        "f.yaml:2: has the byte 0xff, which is not UTF-8; save the file as UTF-8"
    ]
    assert problems("a: 1".encode("utf-16")) == ["f.yaml: is encoded as UTF-16; save it as UTF-8"]
    assert problems(b"\x00\x01\x02") == [
        "f.yaml:1: has the control character U+0000; is it a text file?"
    ]


def test_a_byte_order_mark_and_crlf_do_no_harm() -> None:
    assert parse_document("f.yaml", b"\xef\xbb\xbfa: 1\r\nb: 2\r\n").data == {"a": 1, "b": 2}
    assert parse_document("f.toml", b"\xef\xbb\xbfa = 1\r\nb = 2\r\n").data == {"a": 1, "b": 2}


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8")))
@example(b"a: !<tag:yaml.org,2002:int> x")
@example(b"%TAG ! tag:x:\n---\na: !b c")
@example(b'a: "\\ud800"')
def test_whatever_is_in_a_file_it_is_read_or_refused(content: bytes) -> None:
    for name in ("f.yaml", "f.toml"):
        outcome = read_or_refuse(name, content)
        assert isinstance(outcome, list) or isinstance(outcome.data, dict)


_yamlish = st.text("ab:-[]{},&*!|>'\"#%@`? \n\t01.~<", max_size=60)


@given(_yamlish)
def test_whatever_looks_like_yaml_is_read_or_refused(text: str) -> None:
    outcome = read_or_refuse("f.yaml", text.encode())
    if isinstance(outcome, list):
        assert outcome
        assert all(problem.startswith("f.yaml") for problem in outcome)


# --- Flags over files --------------------------------------------------------------------------


def test_an_override_wins_and_is_named() -> None:
    document = parse_document("f.yaml", b"a: &x\n  b: 1\nc: *x\n")

    document.override(("a", "b"), 2, flag="--b")
    document.override(("d", "e"), 3, flag="--e")

    assert document.data == {"a": {"b": 2}, "c": {"b": 1}, "d": {"e": 3}}
    assert document.problem(("a", "b"), "wrong") == "--b: a.b: wrong"
    assert document.problem(("c", "b"), "wrong") == "f.yaml:2: c.b: wrong"
    assert document.problem(("d", "e"), "wrong") == "--e: d.e: wrong"


def test_without_a_file_problems_name_the_defaults() -> None:
    assert Document.empty().problem(("a", "b"), "wrong") == "defaults: a.b: wrong"


def test_dotted_paths() -> None:
    assert dotted(("pools", 0, "engines", 12, "url")) == "pools[0].engines[12].url"
