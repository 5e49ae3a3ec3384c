"""Pause, resume, sleep and wake, carried into the files of a directory."""

import os
import stat
from pathlib import Path

import pytest

from steersman.errors import (
    EditImpossible,
    EditInvalid,
    EditRefused,
    ManifestChanged,
    ManifestNotWritable,
    ManifestUnusable,
    RequestError,
    ResourceNotFound,
)
from steersman_operator.manifests import Edited, ManifestDirectory, Verb
from tests.manifests.support import MemoryLedger, settle, states, write
from tests.resources.support import engine_text

ENGINES = """\
endpoints:
  static:
    - {name: a, url: 'http://h:1'}
    - {name: b, url: 'http://h:2'}
    - url: http://h:3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "fleet" / "q.yaml"
    found.parent.mkdir()
    write(found, "# ours\n" + engine_text(ENGINES))
    return found


@pytest.fixture
def directory(path: Path) -> ManifestDirectory:
    found = ManifestDirectory(path.parent, ledger=MemoryLedger())
    settle(found)
    return found


def overrides(directory: ManifestDirectory) -> dict[str, str]:
    (resource,) = directory.manifests.engines
    return {found.engine: found.state.value for found in resource.spec.overrides}


def refused(directory: ManifestDirectory, verb: Verb, engine: str | None = None) -> RequestError:
    before = directory.manifests
    with pytest.raises(RequestError) as caught:
        directory.edit("qwen", verb=verb, engine=engine)
    assert directory.manifests is before
    return caught.value


def test_a_pool_is_paused_and_resumed(path: Path, directory: ManifestDirectory) -> None:
    text = path.read_text()
    assert directory.edit("qwen", verb=Verb.PAUSE) == Edited(
        generation=2, changed=True, message="qwen is to be Paused now"
    )
    assert path.read_text() == text.replace("  model: qwen\n", "  model: qwen\n  state: Paused\n")
    # No look at the directory is needed, and the next one finds nothing new.
    assert states(directory) == {"qwen": "Paused"}
    assert directory.poll() is False
    assert directory.poll() is False
    assert directory.edit("qwen", verb=Verb.PAUSE) == Edited(
        generation=2, changed=False, message="qwen is to be Paused already"
    )
    directory.edit("qwen", verb=Verb.RESUME)
    assert states(directory) == {"qwen": "Active"}


@pytest.mark.parametrize(
    ("before", "verb", "after"),
    [
        ("Active", Verb.PAUSE, "Paused"),
        ("Active", Verb.RESUME, "Active"),
        ("Active", Verb.SLEEP, "Asleep"),
        ("Active", Verb.WAKE, "Active"),
        ("Paused", Verb.PAUSE, "Paused"),
        ("Paused", Verb.RESUME, "Active"),
        ("Paused", Verb.SLEEP, "Asleep"),
        ("Paused", Verb.WAKE, "is to be paused, not asleep; resume it"),
        ("Asleep", Verb.PAUSE, "is to be asleep; wake it first"),
        ("Asleep", Verb.RESUME, "is to be asleep; wake it first"),
        ("Asleep", Verb.SLEEP, "Asleep"),
        ("Asleep", Verb.WAKE, "Active"),
    ],
)
@pytest.mark.parametrize("engine", [None, "a"])
def test_every_verb_in_every_state(
    tmp_path: Path, before: str, verb: Verb, after: str, engine: str | None
) -> None:
    spec = (
        f"state: {before}\n" if engine is None else f"overrides: [{{engine: a, state: {before}}}]\n"
    )
    write(tmp_path / "q.yaml", engine_text(spec + ENGINES))
    directory = ManifestDirectory(tmp_path, ledger=MemoryLedger())
    directory.poll()
    if " " in after:
        error = refused(directory, verb, engine)
        assert isinstance(error, EditRefused)
        assert error.status == 409
        assert str(error) == ("qwen " if engine is None else "engine a of qwen ") + after
        return
    found = directory.edit("qwen", verb=verb, engine=engine)
    assert found.changed is (before != after)
    if engine is None:
        assert states(directory) == {"qwen": after}
    else:
        # An override that says what the pool says is not kept, unless somebody wrote it.
        kept = before if not found.changed else after
        assert overrides(directory) == ({} if found.changed and after == "Active" else {"a": kept})


def test_an_engine_is_found_by_name_or_address(directory: ManifestDirectory) -> None:
    for engine in ("a", "h:2", "http://h:3"):
        directory.edit("qwen", verb=Verb.SLEEP, engine=engine)
    assert overrides(directory) == {"a": "Asleep", "b": "Asleep", "h:3": "Asleep"}


def test_the_override_goes_when_it_says_what_the_pool_says(
    path: Path, directory: ManifestDirectory
) -> None:
    text = path.read_text()
    directory.edit("qwen", verb=Verb.PAUSE, engine="a")
    found = directory.edit("qwen", verb=Verb.RESUME, engine="a")
    assert found.message == "engine a of qwen is to be Active now, as the rest of the pool"
    assert path.read_text() == text


def test_overrides_stay_when_the_pool_changes(directory: ManifestDirectory) -> None:
    directory.edit("qwen", verb=Verb.SLEEP, engine="a")
    directory.edit("qwen", verb=Verb.PAUSE, engine="b")
    found = directory.edit("qwen", verb=Verb.PAUSE)
    assert found.message == (
        "qwen is to be Paused now; engines with a state of their own: a (Asleep), b (Paused)"
    )
    assert overrides(directory) == {"a": "Asleep", "b": "Paused"}
    # An engine under a paused pool gets a state of its own.
    directory.edit("qwen", verb=Verb.RESUME, engine="h:3")
    assert overrides(directory) == {"a": "Asleep", "b": "Paused", "h:3": "Active"}


def test_an_unknown_name_is_answered_with_those_that_may_be_meant(
    path: Path, directory: ManifestDirectory
) -> None:
    with pytest.raises(ResourceNotFound) as caught:
        directory.edit("qwem", verb=Verb.PAUSE)
    assert str(caught.value) == "RolloutEngine 'qwem' does not exist; did you mean qwen?"
    error = refused(directory, Verb.PAUSE, "zzz")
    assert str(error) == (
        "in RolloutEngine qwen the engine 'zzz' does not exist; there are a, b, h:3"
    )
    assert error.status == 404
    empty = ManifestDirectory(path.parent.parent, ledger=MemoryLedger())
    empty.poll()
    with pytest.raises(ResourceNotFound, match="there is none at all"):
        empty.edit("qwen", verb=Verb.PAUSE)


def test_a_file_that_was_changed_meanwhile_is_left_alone(
    path: Path, directory: ManifestDirectory
) -> None:
    text = path.read_text() + "# mine\n"
    write(path, text)
    error = refused(directory, Verb.PAUSE)
    assert isinstance(error, ManifestChanged)
    assert "q.yaml has just been changed" in str(error)
    assert path.read_text() == text
    settle(directory)
    directory.edit("qwen", verb=Verb.PAUSE)
    assert "# mine" in path.read_text()


def test_a_bad_file_must_be_mended_first(path: Path, directory: ManifestDirectory) -> None:
    write(path, path.read_text().replace("model", "modle"))
    settle(directory)
    error = refused(directory, Verb.PAUSE)
    assert isinstance(error, ManifestUnusable)
    assert error.status == 422
    assert "q.yaml:7: spec.modle: unknown key `modle`; did you mean `model`?" in str(error)


def test_a_resource_that_would_contradict_itself_is_refused(
    path: Path, directory: ManifestDirectory
) -> None:
    write(path, engine_text(ENGINES + "drain: {onTimeout: ProceedInFlight}"))
    settle(directory)
    text = path.read_text()
    for engine in (None, "a"):
        error = refused(directory, Verb.SLEEP, engine)
        assert isinstance(error, EditInvalid)
        assert "ProceedInFlight" in str(error)
    assert path.read_text() == text
    assert directory.edit("qwen", verb=Verb.PAUSE).changed


def test_what_is_shared_must_be_changed_by_hand(path: Path, directory: ManifestDirectory) -> None:
    write(path, engine_text("state: &s Active") + "status: {was: *s}\n")
    settle(directory)
    error = refused(directory, Verb.PAUSE)
    assert isinstance(error, EditImpossible)
    assert str(error).endswith("change it by hand: write `state: Paused` below `spec`")


def test_mode_and_link_stay_and_no_scratch_is_left(
    path: Path, directory: ManifestDirectory
) -> None:
    target = path.parent / "target"
    path.rename(target)
    path.symlink_to("target")
    target.chmod(0o640)
    settle(directory)
    directory.edit("qwen", verb=Verb.PAUSE)
    assert path.is_symlink()
    assert "state: Paused" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(found.name for found in path.parent.iterdir()) == ["q.yaml", "target"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may give files away")
def test_the_owner_stays(path: Path, directory: ManifestDirectory) -> None:
    os.chown(path, 1234, 2345)
    settle(directory)
    directory.edit("qwen", verb=Verb.PAUSE)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_a_read_only_file_is_not_replaced(path: Path, directory: ManifestDirectory) -> None:
    path.chmod(0o444)
    error = refused(directory, Verb.PAUSE)
    assert isinstance(error, ManifestNotWritable)
    assert str(error) == f"{path} is read-only; make it writable (chmod u+w)"


def test_a_file_that_cannot_be_replaced_stays_whole(
    path: Path, directory: ManifestDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = path.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = refused(directory, Verb.PAUSE)
    assert str(error) == (
        f"{path} cannot be replaced: No space left on device; change it yourself, where it can be "
        "written"
    )
    assert path.read_text() == text
    assert [found.name for found in path.parent.iterdir()] == ["q.yaml"]


def test_a_file_that_is_gone_is_said_to_be(path: Path, directory: ManifestDirectory) -> None:
    path.unlink()
    error = refused(directory, Verb.PAUSE)
    assert isinstance(error, ManifestNotWritable)
    assert "does not exist" in str(error)


def test_a_duplicate_elsewhere_does_not_stand_in_the_way(
    path: Path, directory: ManifestDirectory
) -> None:
    write(path.parent / "z.yaml", engine_text())
    settle(directory)
    assert directory.edit("qwen", verb=Verb.PAUSE).changed
    assert states(directory) == {"qwen": "Paused"}
