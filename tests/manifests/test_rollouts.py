"""Rollouts that are paused and undone, and which WeightVersions are kept for that."""

from pathlib import Path

import pytest

from steersman.errors import (
    EditInvalid,
)
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.manifests import (
    Edited,
    RolloutVerb,
)
from steersman_operator.manifests.refits import (
    NothingToUndo,
    TargetChanged,
)
from tests.manifests.refitting import POOL, Fleet
from tests.manifests.support import problems, settle, write
from tests.resources.support import engine_text, version_text


def test_a_rollout_is_paused_and_resumed(fleet: Fleet) -> None:
    done = fleet.rollout(RolloutVerb.PAUSE)
    assert done == Edited(
        generation=2,
        changed=True,
        message="the rollout of qwen is paused now; an engine that has begun is finished",
    )
    assert fleet.text == POOL + "  rollout:\n    paused: true\n"
    assert fleet.directory.manifests.engines[0].spec.rollout.paused
    assert fleet.rollout(RolloutVerb.PAUSE).message == "the rollout of qwen is paused already"
    assert fleet.rollout(RolloutVerb.RESUME).message == "the rollout of qwen is not paused now"
    assert not fleet.directory.manifests.engines[0].spec.rollout.paused
    done = fleet.rollout(RolloutVerb.RESUME)
    assert (done.changed, done.message) == (False, "the rollout of qwen is not paused already")


def version(fleet: Fleet) -> str:
    assert fleet.weights is not None
    return fleet.weights.version


def test_an_undo_goes_back_and_another_one_forth(fleet: Fleet) -> None:
    for number in (7, 8, 9):
        fleet.refit(str(number), f"/w/{number}")
    done = fleet.rollout(RolloutVerb.UNDO)
    assert done.message == "qwen is to have 8 (Disk /w/8) again"
    assert done.target == Weights(version="8", source=SourceKind.DISK, path="/w/8")
    assert version(fleet) == "8"
    fleet.restart()
    fleet.rollout(RolloutVerb.UNDO)
    assert version(fleet) == "9"
    fleet.rollout(RolloutVerb.UNDO, to="7")
    assert version(fleet) == "7"
    fleet.rollout(RolloutVerb.UNDO, to="qwen-8")
    assert version(fleet) == "8"


def test_what_people_write_themselves_can_be_undone_too(fleet: Fleet) -> None:
    fleet.refit("7", "/w/7")
    fleet.refit("8", "/w/8")
    write(fleet.root / "q.yaml", fleet.text.replace("qwen-8", "qwen-7"))
    settle(fleet.directory)
    fleet.rollout(RolloutVerb.UNDO)
    assert version(fleet) == "8"

    # A mistake is not a place to go back to, but to go back from.
    write(fleet.root / "q.yaml", fleet.text.replace("qwen-8", "nowhere"))
    settle(fleet.directory)
    fleet.restart()
    fleet.rollout(RolloutVerb.UNDO)
    assert version(fleet) == "8"
    write(fleet.root / "q.yaml", POOL)
    settle(fleet.directory)
    fleet.rollout(RolloutVerb.UNDO)
    assert version(fleet) == "8"


def test_what_cannot_be_undone_says_so(fleet: Fleet) -> None:
    with pytest.raises(NothingToUndo, match="of qwen no weights before are known"):
        fleet.rollout(RolloutVerb.UNDO)
    fleet.refit("7")
    with pytest.raises(NothingToUndo):
        fleet.rollout(RolloutVerb.UNDO)
    fleet.refit("8")
    with pytest.raises(NothingToUndo, match="of qwen no other weights called '9' are known"):
        fleet.rollout(RolloutVerb.UNDO, to="9")
    with pytest.raises(TargetChanged, match="is to have qwen-8 now, and not qwen-7 any more"):
        fleet.rollout(RolloutVerb.UNDO, since="qwen-7")
    fleet.rollout(RolloutVerb.UNDO, since="qwen-8")
    assert version(fleet) == "7"


# --- what is kept ---------------------------------------------------------------------------------


def made(fleet: Fleet) -> list[str]:
    return [name[len("weights-qwen-") : -len(".yaml")] for name in fleet.files if "weights" in name]


def test_what_nobody_could_go_back_to_is_removed(fleet: Fleet) -> None:
    for number in range(11, 18):
        fleet.refit(str(number), f"/w/{number}")
        assert made(fleet) == [str(one) for one in range(max(11, number - 2), number + 1)]
    assert [one.name for one in fleet.directory.manifests.versions] == [
        "qwen-15",
        "qwen-16",
        "qwen-17",
    ]
    # And can be made anew, as other weights.
    assert fleet.refit("11", "/elsewhere").target == Weights(
        version="11", source=SourceKind.DISK, path="/elsewhere"
    )
    assert problems(fleet.directory) == ()
    fleet.restart()
    assert fleet.weights is not None
    assert fleet.weights.path == "/elsewhere"


def test_without_a_history_only_the_present_is_kept(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL.replace("Limit: 2", "Limit: 0"))
    settle(fleet.directory)
    fleet.refit("7")
    fleet.refit("8")
    assert made(fleet) == ["8"]
    with pytest.raises(NothingToUndo):
        fleet.rollout(RolloutVerb.UNDO)


def test_what_people_have_made_is_theirs(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL.replace("Limit: 2", "Limit: 0"))
    own = version_text("own", "version: 1\nsource: {external: {}}", model="Q/q")
    write(fleet.root / "own.yaml", own)
    settle(fleet.directory)
    fleet.refit("1")
    fleet.refit("7")
    fleet.refit("8")
    # One that somebody has put something into, or has taken over, is not ours any more.
    path = fleet.root / "weights-qwen-8.yaml"
    write(path, path.read_text() + "---\n" + own.replace("own", "more").replace(": 1", ": 2"))
    settle(fleet.directory)
    fleet.refit("9")
    taken = fleet.root / "weights-qwen-9.yaml"
    write(taken, taken.read_text().replace("created-by: steersman", "created-by: me"))
    settle(fleet.directory)
    moved = fleet.refit("10")
    assert moved.changed
    (fleet.root / "weights-qwen-10.yaml").rename(fleet.root / "ten.yaml")
    settle(fleet.directory)
    fleet.refit("11")

    assert fleet.files == [
        "own.yaml",
        "q.yaml",
        "ten.yaml",
        "weights-qwen-11.yaml",
        "weights-qwen-8.yaml",
        "weights-qwen-9.yaml",
    ]


def test_what_another_pool_is_to_have_is_kept(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL.replace("Limit: 2", "Limit: 0"))
    settle(fleet.directory)
    fleet.refit("7")
    other = engine_text(
        "weightVersionRef: {name: qwen-7}\nversionHistoryLimit: 0", name="other", model="Q/q"
    )
    write(fleet.root / "other.yaml", other)
    settle(fleet.directory)
    fleet.refit("8")
    fleet.refit("9")
    assert made(fleet) == ["7", "9"]


def test_weights_of_an_interrupted_refit_do_not_stay_for_ever(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL.replace("Limit: 2", "Limit: 1"))
    settle(fleet.directory)
    left = fleet.root / "weights-qwen-3.yaml"
    fleet.refit("3")
    text = left.read_text()
    write(fleet.root / "q.yaml", POOL.replace("Limit: 2", "Limit: 1"))
    fleet.memory.unlink()
    fleet.restart()
    assert left.read_text() == text
    fleet.refit("4")
    assert made(fleet) == ["3", "4"], "one that is not used is kept"
    fleet.refit("5")
    assert made(fleet) == ["4", "5"]


def test_what_cannot_be_removed_is_in_nobodys_way(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.refit("6")
    fleet.refit("7")
    fleet.refit("8")

    def unlink(path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", unlink)
    assert fleet.refit("9").changed
    assert "weights-qwen-6.yaml cannot be removed: Read-only file system" in caplog.text
    assert made(fleet) == ["6", "7", "8", "9"]
    monkeypatch.undo()
    fleet.refit("10")
    assert made(fleet) == ["10", "8", "9"]


def test_an_invalid_version_is_not_half_made(fleet: Fleet) -> None:
    with pytest.raises(EditInvalid):
        fleet.refit("x" * 129)
    assert fleet.files == ["q.yaml"]
