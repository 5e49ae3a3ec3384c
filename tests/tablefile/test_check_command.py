"""``steersman check``: what it prints and how it ends."""

from pathlib import Path

import pytest

from steersman.cli import main

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_good_files_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["proxy.yaml", "proxy.toml", "table.yaml", "table.toml"]

    assert main(["check", *(str(EXAMPLES / name) for name in names)]) == 0

    what = ["proxy configuration"] * 2 + ["fleet table, 2 pools, 5 engines"] * 2
    assert capsys.readouterr().out.splitlines() == [
        f"{EXAMPLES / name}: ok ({kind})" for name, kind in zip(names, what, strict=True)
    ]


def test_all_problems_of_all_files_are_shown(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "a.yaml").write_text("listen: {port: -1}\nrl: {enabeld: false}\n")
    (files / "b.toml").write_text('[[pools]]\nname = "p"\nmodels = 7\n')
    (files / "c.yaml").write_text("pools: [{name: one, engines: [{url: 'http://a'}]}]\n")

    assert main(["check", "a.yaml", "b.toml", "c.yaml", "d.yaml"]) == 1

    shown = capsys.readouterr()
    assert shown.out == "c.yaml: ok (fleet table, 1 pool, 1 engine)\n"
    assert shown.err.splitlines() == [
        "a.yaml:1: listen.port: must be a port number from 0 to 65535, found -1",
        "a.yaml:2: rl.enabeld: unknown key `enabeld`; did you mean `enabled`?",
        "b.toml:3: pools[0].models: must be a list, found a number",
        "d.yaml: does not exist; check the path",
    ]


def test_the_kind_may_be_given(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "a.yaml").write_text("pools: {}\n")

    assert main(["check", "--kind", "config", "a.yaml"]) == 0
    assert main(["check", "--kind", "table", "a.yaml"]) == 1
    assert capsys.readouterr().err == "a.yaml:1: pools: must be a list, found keys below it\n"


def test_pools_of_the_configuration_without_a_row_are_a_warning(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "proxy.yaml").write_text("pools: {matth: {}}\n")
    (files / "table.yaml").write_text("pools: [{name: math}]\n")

    assert main(["check", "proxy.yaml", "table.yaml"]) == 0

    shown = capsys.readouterr()
    assert shown.err == (
        "warning: proxy.yaml: pools.matth: the table has no pool of this name; it has math\n"
    )
    assert shown.out.splitlines() == [
        "proxy.yaml: ok (proxy configuration)",
        "table.yaml: ok (fleet table, 1 pool, 0 engines)",
    ]


def test_an_empty_list_of_pools_written_by_mistake_is_checked_as_a_table(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "t.yaml").write_text("pools:\n")

    assert main(["check", "t.yaml"]) == 1
    assert capsys.readouterr().err == "t.yaml:1: pools: has no value; write a list\n"
