"""What is remembered of manifests, also over a restart."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from steersman_operator.manifests import ManifestDirectory, ManifestMemory
from tests.manifests.support import MemoryLedger, problems, settle, states, write
from tests.resources.support import engine_text, version_text

DISK = "version: 7\nsource: {disk: {path: /w/7}}\n"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    found = tmp_path / "fleet"
    found.mkdir()
    return found


@pytest.fixture
def start(fleet: Path) -> Callable[[], ManifestDirectory]:
    """A new operator over the same directory."""
    ledger = MemoryLedger()

    def start() -> ManifestDirectory:
        memory = ManifestMemory(fleet.parent / "memory.json")
        found = ManifestDirectory(fleet, ledger=ledger, memory=memory, good=fleet.parent / "good")
        settle(found)
        return found

    return start


Start = Callable[[], ManifestDirectory]


# --- which of two definitions counts --------------------------------------------------------------


def test_of_two_files_the_one_before_counts_over_a_restart_too(fleet: Path, start: Start) -> None:
    write(fleet / "m.yaml", engine_text(name="a"))
    start()
    write(fleet / "c.yaml", engine_text("state: Paused", name="a"))
    for _ in range(2):
        directory = start()
        assert states(directory) == {"a": "Active"}
        assert problems(directory) == (
            (
                "c.yaml:1: RolloutEngine a is defined in m.yaml:1 already, and that one counts; keep "
                "one of them"
            ),
        )
    (fleet / "m.yaml").unlink()
    assert states(start()) == {"a": "Paused"}
    write(fleet / "b.yaml", engine_text("state: Asleep", name="a"))
    assert states(start()) == {"a": "Paused"}


def test_of_two_in_one_file_the_one_before_counts_over_a_restart_too(
    fleet: Path, start: Start
) -> None:
    one = engine_text("state: Paused", name="a")
    write(fleet / "a.yaml", one)
    start()
    write(fleet / "a.yaml", engine_text(name="a") + "---\n" + one)
    assert states(start()) == {"a": "Paused"}


def test_who_was_there_is_not_forgotten_for_a_file_that_cannot_be_read(
    fleet: Path, start: Start
) -> None:
    write(fleet / "m.yaml", engine_text(name="a"))
    start()
    (fleet.parent / "good" / "m.yaml").unlink()
    write(fleet / "m.yaml", "half a fi")
    write(fleet / "c.yaml", engine_text("state: Paused", name="b"))
    start()
    write(fleet / "m.yaml", engine_text(name="a"))
    write(fleet / "c.yaml", engine_text("state: Paused", name="a"))
    assert states(start()) == {"a": "Active"}


# --- a WeightVersion does not change --------------------------------------------------------------

HEAD = (
    "v.yaml:1: spec.{}, but a WeightVersion cannot be changed; the first one stays in force: change it "
    "back, and give other weights a WeightVersion and a version of their own"
)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            DISK.replace("/w/7", "/other"),
            "source.disk.path: was '/w/7' and is now '/other'",
        ),
        (DISK.replace(": 7", ": 8"), "version: was '7' and is now '8'"),
        (
            "version: 7\nsource: {external: {}}",
            "source.disk.path: was '/w/7' and is now not there (also spec.source.external)",
        ),
        (DISK + "ordinal: 3", "ordinal: was not there and is now 3"),
        (DISK + "checksum: ab", "checksum: was not there and is now 'ab'"),
        (DISK + "digest: ab", "digest: was not there and is now 'ab'"),
    ],
)
def test_a_change_is_refused_and_the_first_one_stays(
    fleet: Path, start: Start, spec: str, said: str
) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    first = start()
    (before,) = first.manifests.versions
    write(fleet / "v.yaml", version_text("seven", spec))
    settle(first)

    for directory in (first, start(), start()):
        (kept,) = directory.manifests.versions
        assert problems(directory) == (HEAD.format(said),)
        assert directory.manifests.problems_of("v.yaml") == (HEAD.format(said),)
        assert (kept.spec, kept.digest, kept.generation) == (before.spec, before.digest, 1)
    write(fleet / "v.yaml", "# as it was\n" + version_text("seven", DISK))
    settle(first)
    assert problems(first) == ()


def test_only_the_weight_version_is_refused_and_not_what_is_beside_it(
    fleet: Path, start: Start
) -> None:
    write(fleet / "v.yaml", engine_text(name="a") + "---\n" + version_text("seven", DISK))
    directory = start()
    other = version_text("seven", DISK.replace("/w", "/x"))
    write(fleet / "v.yaml", engine_text("state: Paused", name="a") + "---\n" + other)
    settle(directory)
    assert states(directory) == {"a": "Paused"}
    (problem,) = problems(directory)
    assert problem.startswith("v.yaml:9: spec.source.disk.path: was '/w/7' and is now '/x/7'")


def test_the_same_said_otherwise_is_no_change(fleet: Path, start: Start) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    directory = start()
    write(
        fleet / "w.yaml",
        version_text("seven", 'source:\n  disk:\n    path: "/w/7" # here\nversion: "7"'),
    )
    (fleet / "v.yaml").unlink()
    settle(directory)
    assert problems(directory) == ()
    assert [found.place for found in directory.manifests.versions] == ["w.yaml:1"]


def test_moving_it_into_another_file_does_not_change_it_either(fleet: Path, start: Start) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    directory = start()
    (fleet / "v.yaml").unlink()
    write(fleet / "w.yaml", version_text("seven", DISK.replace("/w", "/x")))
    settle(directory)
    (kept,) = directory.manifests.versions
    assert kept.spec.source.disk is not None
    assert kept.spec.source.disk.path == "/w/7"
    assert len(problems(directory)) == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_removed_one_is_forgotten(fleet: Path, start: Start, restarted: bool) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    directory = start()
    write(fleet / "a.yaml", engine_text(name="a"))
    (fleet / "v.yaml").unlink()
    settle(directory)
    if restarted:
        directory = start()
    write(fleet / "v.yaml", version_text("seven", DISK.replace("/w", "/x")))
    settle(directory)
    assert problems(directory) == ()
    (kept,) = directory.manifests.versions
    assert kept.spec.source.disk is not None
    assert kept.spec.source.disk.path == "/x/7"


@pytest.mark.parametrize("empty", [False, True])
def test_a_directory_that_is_away_for_a_moment_is_not_removed(
    fleet: Path, start: Start, empty: bool
) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    directory = start()
    fleet.rename(fleet.parent / "away")
    if empty:
        fleet.mkdir()  # as where a disk is to be mounted
    settle(directory)
    start()
    if empty:
        fleet.rmdir()
    (fleet.parent / "away").rename(fleet)
    write(fleet / "v.yaml", version_text("seven", DISK.replace("/w", "/x")))
    assert len(problems(start())) == 1


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"{", b'{"weights": 7}', b"\xff"])
def test_a_memory_that_cannot_be_read_begins_anew(
    fleet: Path, start: Start, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    start()
    path = fleet.parent / "memory.json"
    path.write_bytes(content)
    directory = start()
    assert "memory.json cannot be read, what it remembers begins anew" in caplog.text
    assert [found.name for found in directory.manifests.versions] == ["seven"]
    assert b"/w/7" in path.read_bytes()


def test_a_spec_in_it_that_is_none_counts_for_nothing(fleet: Path, start: Start) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    start()
    path = fleet.parent / "memory.json"
    path.write_text(path.read_text().replace('"source"', '"sauce"'))
    assert problems(start()) == ()


def test_a_memory_that_cannot_be_written_is_only_missed(
    fleet: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    path = fleet.parent / "memory.json"
    path.mkdir()
    write(fleet / "v.yaml", version_text("seven", DISK))
    directory = start()
    assert "memory.json cannot be written" in caplog.text
    assert problems(directory) == ()
    path.rmdir()
    write(fleet / "a.yaml", engine_text(name="a"))
    settle(directory)
    assert b"/w/7" in path.read_bytes()


def test_when_it_was_first_read_is_remembered_and_nothing_of_what_is_gone(
    fleet: Path, start: Start
) -> None:
    write(fleet / "a.yaml", engine_text(name="a"))
    write(fleet / "v.yaml", version_text("seven", DISK))
    (first,) = start().manifests.versions
    assert first.created is not None
    assert abs(first.created - time.time()) < 60
    (again,) = start().manifests.versions
    assert (again.created, again.generation) == (first.created, 1)
    write(fleet / "other.yaml", engine_text(name="other", model="m"))
    for name in ("a.yaml", "v.yaml"):
        (fleet / name).unlink()
    start()
    kept = msgspec.json.decode((fleet.parent / "memory.json").read_bytes())
    assert list(kept["definitions"]) == ["RolloutEngine/other"]
    assert (kept["weights"], kept["references"]) == ({}, {})


def test_nothing_is_written_where_nothing_is_new(fleet: Path, start: Start) -> None:
    write(fleet / "v.yaml", version_text("seven", DISK))
    start()
    before = (fleet.parent / "memory.json").stat().st_ino
    directory = start()
    write(fleet / "v.yaml", "# words\n" + version_text("seven", DISK))
    settle(directory)
    assert (fleet.parent / "memory.json").stat().st_ino == before
