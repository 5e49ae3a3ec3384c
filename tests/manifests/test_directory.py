"""What of a directory is in force, and when."""

import os
import threading
from pathlib import Path

import pytest

from steersman_operator.manifests import ManifestDirectory
from steersman_operator.manifests import file as file_module
from tests.manifests.support import MemoryLedger, problems, settle, states, write
from tests.resources.support import engine_text, version_text


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def directory(tmp_path: Path, ledger: MemoryLedger) -> ManifestDirectory:
    return ManifestDirectory(tmp_path, ledger=ledger)


def weights(name: str, number: int) -> str:
    return version_text(name, f"version: {number}\nsource: {{external: {{}}}}")


def test_everything_is_read_at_the_first_look(tmp_path: Path, directory: ManifestDirectory) -> None:
    write(tmp_path / "b.yaml", engine_text(name="b") + "---\n" + weights("v7", 7))
    write(tmp_path / "a.yml", engine_text("state: Paused", name="a"))
    write(
        tmp_path / "c.json",
        '{"kind": "RolloutEngine", "metadata": {"name": "c"},\n\t"apiVersion": "rollout.steersman.io/v1alpha1", "spec": {"model": "c"}}',
    )
    for name in ("notes.txt", ".hidden.yaml", "b.yaml~", "x.toml", "noextension"):
        write(tmp_path / name, "no: good")
    (tmp_path / ".steersman").mkdir()
    write(tmp_path / ".steersman" / "x.yaml", "no: good")
    (tmp_path / "folder.yaml").mkdir()
    write(tmp_path / "folder.yaml" / "x.yaml", "no: good")

    assert directory.poll() is True
    assert states(directory) == {"a": "Paused", "b": "Active", "c": "Active"}
    assert [(found.name, found.place) for found in directory.manifests.versions] == [
        ("v7", "b.yaml:8")
    ]
    assert problems(directory) == ()
    assert [found.generation for found in directory.manifests.engines] == [1, 1, 1]
    assert directory.poll() is False


def test_a_change_counts_once_it_looks_the_same_twice(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    settle(directory)
    write(tmp_path / "a.yaml", engine_text("state: Pau", name="a")[:-4])
    assert directory.poll() is False
    write(tmp_path / "a.yaml", engine_text("state: Paused", name="a"))
    assert directory.poll() is False
    assert states(directory) == {"a": "Active"}
    assert directory.poll() is True
    assert states(directory) == {"a": "Paused"}
    assert directory.manifests.engines[0].generation == 2


def test_a_new_file_is_waited_for_too(tmp_path: Path, directory: ManifestDirectory) -> None:
    assert directory.poll() is False
    write(tmp_path / "a.yaml", engine_text(name="a"))
    assert directory.poll() is False
    assert directory.poll() is True
    assert states(directory) == {"a": "Active"}


def test_a_file_that_is_renamed_or_written_anew_never_leaves(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    settle(directory)
    (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
    assert directory.poll() is False
    assert states(directory) == {"a": "Active"}
    assert directory.poll() is True
    assert [found.file for found in directory.manifests.engines] == ["b.yaml"]
    assert directory.manifests.engines[0].generation == 1

    (tmp_path / "b.yaml").unlink()
    assert directory.poll() is False
    write(tmp_path / "b.yaml", engine_text("state: Asleep", name="a"))
    settle(directory)
    assert states(directory) == {"a": "Asleep"}


def test_a_removed_file_is_gone_with_all_it_had(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a") + "---\n" + weights("v", 1))
    write(tmp_path / "b.yaml", engine_text(name="b"))
    settle(directory)
    (tmp_path / "a.yaml").unlink()
    settle(directory)
    assert states(directory) == {"b": "Active"}
    assert directory.manifests.versions == ()


def test_a_bad_file_keeps_its_last_good_version(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    both = engine_text(name="a") + "---\n" + engine_text(name="a2")
    write(tmp_path / "a.yaml", both)
    write(tmp_path / "b.yaml", engine_text(name="b"))
    settle(directory)
    write(tmp_path / "a.yaml", both.replace("model: qwen\n---", "model: qwen\n  stat: Paused\n---"))
    write(tmp_path / "b.yaml", engine_text("state: Paused", name="b"))
    settle(directory)
    assert states(directory) == {"a": "Active", "a2": "Active", "b": "Paused"}
    said = ("a.yaml:7: spec.stat: unknown key `stat`; did you mean `state`?",)
    assert problems(directory) == said
    assert directory.manifests.problems_of("a.yaml") == said
    assert directory.manifests.problems_of("b.yaml") == ()

    write(tmp_path / "a.yaml", both)
    settle(directory)
    assert problems(directory) == ()
    assert [found.generation for found in directory.manifests.engines] == [1, 1, 2]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "is empty"),
        (" \r\n\n  \n", "is empty"),
        ("\ufeff\n", "is empty"),
        ("# kind: RolloutEngine\n", "has no resources"),
        ("---\n# later\n---\n", "has no resources"),
    ],
)
def test_a_file_that_is_emptied_keeps_its_last_good_version(
    tmp_path: Path, content: str, found: str
) -> None:
    manifests, good = tmp_path / "fleet", tmp_path / "good"
    manifests.mkdir()
    ledger = MemoryLedger()
    directory = ManifestDirectory(manifests, ledger=ledger, good=good)
    write(manifests / "a.yaml", engine_text("state: Paused", name="a"))
    settle(directory)
    write(manifests / "a.yaml", content)
    settle(directory)

    again = ManifestDirectory(manifests, ledger=ledger, good=good)
    settle(again)
    for one in (directory, again):
        assert states(one) == {"a": "Paused"}
        assert problems(one) == (
            (
                f"a.yaml: {found}; its last good version stays in force; remove the file to remove "
                "its resources"
            ),
        )
    write(manifests / "a.yaml", engine_text(name="a"))
    settle(directory)
    assert (states(directory), problems(directory)) == ({"a": "Active"}, ())
    write(manifests / "a.yaml", content)
    settle(directory)
    (manifests / "a.yaml").unlink()
    settle(directory)
    assert (states(directory), problems(directory)) == ({}, ())


def test_a_new_file_may_be_empty(tmp_path: Path, directory: ManifestDirectory) -> None:
    write(tmp_path / "a.yaml", "# later\n")
    settle(directory)
    write(tmp_path / "a.yaml", "")
    settle(directory)
    assert (states(directory), problems(directory)) == ({}, ())


def test_a_file_that_is_bad_from_the_start_has_nothing(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", "kind: [")
    write(tmp_path / "b.yaml", engine_text(name="b"))
    assert directory.poll()
    assert states(directory) == {"b": "Active"}
    assert [line.split(" ")[0] for line in problems(directory)] == ["a.yaml:1:"]
    (tmp_path / "a.yaml").unlink()
    settle(directory)
    assert problems(directory) == ()


def test_the_last_good_version_survives_a_restart(tmp_path: Path, ledger: MemoryLedger) -> None:
    manifests, good = tmp_path / "fleet", tmp_path / "good"
    manifests.mkdir()
    write(manifests / "a.yaml", engine_text("state: Paused", name="a"))
    write(manifests / "b.yaml", engine_text(name="b"))
    settle(ManifestDirectory(manifests, ledger=ledger, good=good))
    write(manifests / "a.yaml", "half a fi")
    (manifests / "b.yaml").unlink()

    directory = ManifestDirectory(manifests, ledger=ledger, good=good)
    settle(directory)
    assert states(directory) == {"a": "Paused"}
    assert len(problems(directory)) == 1
    # A file of the name of one that is gone begins anew.
    write(manifests / "b.yaml", "half a fi")
    assert states(ManifestDirectory(manifests, ledger=ledger, good=good)) == {}
    again = ManifestDirectory(manifests, ledger=ledger, good=good)
    settle(again)
    assert states(again) == {"a": "Paused"}


def test_of_two_definitions_the_one_before_counts(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "m.yaml", engine_text(name="a"))
    settle(directory)
    write(tmp_path / "c.yaml", "# first\n" + engine_text("state: Paused", name="a"))
    settle(directory)
    assert states(directory) == {"a": "Active"}
    assert problems(directory) == (
        (
            "c.yaml:2: RolloutEngine a is defined in m.yaml:1 already, and that one counts; keep one "
            "of them"
        ),
    )
    # The other one counts as soon as it is the only one.
    (tmp_path / "m.yaml").unlink()
    settle(directory)
    assert states(directory) == {"a": "Paused"}
    assert problems(directory) == ()
    write(tmp_path / "m.yaml", engine_text(name="a"))
    settle(directory)
    assert states(directory) == {"a": "Paused"}


def test_of_two_definitions_at_the_start_the_first_counts(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    twice = engine_text("state: Paused", name="a") + "---\n" + engine_text(name="a")
    write(tmp_path / "b.yaml", twice)
    write(tmp_path / "c.yaml", engine_text("state: Asleep", name="a"))
    settle(directory)
    assert states(directory) == {"a": "Paused"}
    assert [line.split(":")[:2] for line in problems(directory)] == [
        ["b.yaml", "9"],
        ["c.yaml", "1"],
    ]
    # A third before it in the same file does not take over.
    write(tmp_path / "b.yaml", engine_text("state: Asleep", name="a") + "---\n" + twice)
    settle(directory)
    assert states(directory) == {"a": "Paused"}


def test_links_are_followed_as_in_a_config_map(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    for number, state in enumerate(("Active", "Paused")):
        (tmp_path / f"..data{number}").mkdir()
        write(tmp_path / f"..data{number}" / "a.yaml", engine_text(f"state: {state}", name="a"))
    (tmp_path / "..data").symlink_to("..data0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    settle(directory)
    assert states(directory) == {"a": "Active"}
    (tmp_path / "..new").symlink_to("..data1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    settle(directory)
    assert states(directory) == {"a": "Paused"}


def test_a_link_to_nothing_keeps_what_was_there(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "target", engine_text(name="a"))
    (tmp_path / "a.yaml").symlink_to("target")
    settle(directory)
    (tmp_path / "target").unlink()
    settle(directory)
    assert states(directory) == {"a": "Active"}
    assert problems(directory) == ("a.yaml: does not exist; check the path",)
    (tmp_path / "a.yaml").unlink()
    settle(directory)
    assert (states(directory), problems(directory)) == ({}, ())


def test_what_is_no_file_is_a_problem_and_keeps_what_was_there(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    settle(directory)
    (tmp_path / "a.yaml").unlink()
    os.mkfifo(tmp_path / "a.yaml")
    settle(directory)
    assert states(directory) == {"a": "Active"}
    assert problems(directory) == ("a.yaml: is not a regular file",)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_keeps_what_was_there(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    settle(directory)
    (tmp_path / "a.yaml").chmod(0)
    settle(directory)
    assert states(directory) == {"a": "Active"}
    assert problems(directory) == ("a.yaml: cannot be read: permission denied",)
    (tmp_path / "a.yaml").chmod(0o600)
    settle(directory)
    assert problems(directory) == ()


def test_a_directory_that_vanishes_leaves_everything_as_it_was(tmp_path: Path) -> None:
    manifests = tmp_path / "fleet"
    directory = ManifestDirectory(manifests, ledger=MemoryLedger())
    assert directory.poll() is True
    assert problems(directory) == (f"{manifests}: cannot be listed: No such file or directory",)
    manifests.mkdir()
    write(manifests / "a.yaml", engine_text(name="a"))
    assert directory.poll() is True
    assert (states(directory), problems(directory)) == ({"a": "Active"}, ())
    manifests.rename(tmp_path / "away")
    settle(directory)
    assert states(directory) == {"a": "Active"}
    assert len(problems(directory)) == 1
    (tmp_path / "away").rename(manifests)
    settle(directory)
    assert (states(directory), problems(directory)) == ({"a": "Active"}, ())


def test_a_key_file_is_read_again_when_it_changes(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "key", "sk-1")
    write(tmp_path / "a.yaml", engine_text("engineAuth: {dataKeyFile: key}", name="a"))
    settle(directory)
    assert directory.manifests.engines[0].keys.data == "sk-1"
    write(tmp_path / "key", "sk-2")
    settle(directory)
    assert directory.manifests.engines[0].keys.data == "sk-2"
    assert directory.manifests.engines[0].generation == 1
    (tmp_path / "key").unlink()
    settle(directory)
    assert directory.manifests.engines[0].keys.data == "sk-2"
    assert problems(directory) == (
        f"a.yaml:7: spec.engineAuth.dataKeyFile: {tmp_path}/key does not exist",
    )
    write(tmp_path / "key", "sk-3")
    settle(directory)
    assert directory.manifests.engines[0].keys.data == "sk-3"
    assert problems(directory) == ()


def test_a_ledger_that_fails_once_loses_nothing(
    tmp_path: Path, directory: ManifestDirectory, ledger: MemoryLedger
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    ledger.fails = True
    with pytest.raises(OSError, match="disk full"):
        directory.poll()
    ledger.fails = False
    assert directory.poll() is True
    assert states(directory) == {"a": "Active"}


def test_files_that_do_not_change_are_not_opened(
    tmp_path: Path, directory: ManifestDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = "\n".join(f"    - url: http://h:{port}" for port in range(1, 65))
    for number in range(8):
        text = engine_text(f"endpoints:\n  static:\n{static}", name=f"p{number}")
        write(tmp_path / f"p{number}.yaml", text)
    settle(directory)
    before = directory.manifests

    def read(path: object) -> bytes:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr(file_module, "read_content", read)
    assert directory.poll() is False
    assert directory.manifests is before


def test_content_that_is_written_again_is_not_parsed_again(
    tmp_path: Path, directory: ManifestDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    directory.poll()

    def parse(*_: object, **__: object) -> None:
        raise AssertionError("is parsed")

    monkeypatch.setattr(file_module, "parse_documents", parse)
    settle(directory)
    write(tmp_path / "a.yaml", engine_text(name="a"))
    settle(directory)
    assert (states(directory), problems(directory)) == ({"a": "Active"}, ())


def test_manifests_can_be_read_from_another_thread(
    tmp_path: Path, directory: ManifestDirectory
) -> None:
    write(tmp_path / "a.yaml", engine_text(name="a"))
    thread = threading.Thread(target=directory.poll)
    thread.start()
    thread.join()
    assert states(directory) == {"a": "Active"}
