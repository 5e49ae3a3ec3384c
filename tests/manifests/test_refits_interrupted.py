"""Refits beside other writers, and refits that are killed or cannot be written."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from steersman.errors import (
    EditImpossible,
    ManifestChanged,
    ManifestNotWritable,
    ManifestUnusable,
    ResourceNotFound,
)
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.manifests import (
    RefitWish,
    RolloutVerb,
)
from tests.manifests.refitting import POOL, Fleet
from tests.manifests.support import problems, settle, write


def test_a_file_that_somebody_changes_meanwhile_is_left_alone(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL + "# mine\n")
    assert fleet.refused("8", "/w/8").startswith(
        "409 manifest_changed: q.yaml has just been changed"
    )
    settle(fleet.directory)
    fleet.refit("8", "/w/8")
    assert fleet.text.endswith("# mine\n")


def test_of_one_who_writes_in_between_nothing_is_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He saves after the WeightVersion was made, and before the reference is written."""
    from steersman_operator.manifests import directory as module

    whole = vars(module)["create"]

    def create(*args: object, **more: object) -> object:
        made = whole(*args, **more)
        write(fleet.root / "q.yaml", POOL + "# mine\n")
        return made

    monkeypatch.setattr(module, "create", create)
    with pytest.raises(ManifestChanged):
        fleet.refit("8", "/w/8")

    assert fleet.text == POOL + "# mine\n"
    assert fleet.files == ["q.yaml"], "weights that nothing refers to are not left behind"
    monkeypatch.undo()
    settle(fleet.directory)
    assert fleet.refit("8", "/w/8").changed
    assert fleet.weights == Weights(version="8", source=SourceKind.DISK, path="/w/8")


KILLED = """\
import os, sys
from pathlib import Path
from steersman_operator.manifests import ManifestDirectory, ManifestMemory, RefitWish
from steersman_operator.manifests import {module} as module
from tests.manifests.support import MemoryLedger

def die(*args, **more):
    os._exit(9)

root = Path(sys.argv[1])
directory = ManifestDirectory(
    root / "fleet", ledger=MemoryLedger(), memory=ManifestMemory(root / "memory.json")
)
directory.poll()
module.{name} = die
directory.refit("qwen", RefitWish(version="8", path="/w/8"))
"""


@pytest.mark.parametrize(
    ("module", "name", "left"),
    [
        ("replacing", "_put", ["q.yaml"]),
        ("drafts", "replace", ["q.yaml", "weights-qwen-8.yaml"]),
        ("replacing", "current", ["q.yaml", "weights-qwen-8.yaml"]),
        ("manifests.Merger", "merge", ["q.yaml", "weights-qwen-8.yaml"]),
    ],
)
def test_whoever_is_killed_leaves_a_directory_that_makes_sense(
    fleet: Fleet, tmp_path: Path, module: str, name: str, left: list[str]
) -> None:
    module, _, inner = module.partition(".")
    code = KILLED.format(module=module, name=f"{inner}.{name}" if inner else name)
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert killed.returncode == 9

    fleet.restart()
    assert [name for name in fleet.files if not name.startswith(".")] == left
    assert problems(fleet.directory) == ()
    referred = "qwen-8" in fleet.text
    assert (fleet.weights is not None) is referred is (name == "merge")
    # Who asks again gets it, with the WeightVersion that is there.
    assert fleet.refit("8", "/w/8").changed is not referred
    assert fleet.weights == Weights(version="8", source=SourceKind.DISK, path="/w/8")
    assert [name for name in fleet.files if name[0] != "."] == ["q.yaml", "weights-qwen-8.yaml"]


def test_a_file_of_that_name_is_not_overwritten(fleet: Fleet) -> None:
    write(fleet.root / "weights-qwen-8.yaml", "# notes\n")
    settle(fleet.directory)
    assert fleet.refused("8", "/w/8") == (
        "409 manifest_not_writable: weights-qwen-8.yaml is there already, and is not in force; mend "
        "it or remove it"
    )
    assert (fleet.root / "weights-qwen-8.yaml").read_text() == "# notes\n"


def test_a_manifest_with_errors_must_be_mended_first(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL.replace("model", "modle"))
    settle(fleet.directory)
    with pytest.raises(ManifestUnusable, match="did you mean `model`"):
        fleet.refit("8")
    with pytest.raises(ResourceNotFound, match="did you mean qwen"):
        fleet.directory.refit("qwne", RefitWish(version="8"))
    assert fleet.files == ["q.yaml"]


def test_what_cannot_be_written_leaves_nothing(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", "x: &x {name: qwen-8}\n" + POOL + "  weightVersionRef: *x\n")
    settle(fleet.directory)
    assert problems(fleet.directory)
    write(fleet.root / "q.yaml", POOL + "  rollout: &x {mode: InPlace}\nstatus: *x\n")
    settle(fleet.directory)
    with pytest.raises(EditImpossible, match=r"write `rollout: \{paused: true\}` below `spec`"):
        fleet.rollout(RolloutVerb.PAUSE)
    (fleet.root / "q.yaml").chmod(0o444)
    with pytest.raises(ManifestNotWritable, match="read-only"):
        fleet.refit("8")
    assert fleet.files == ["q.yaml"]


def test_a_full_disk_leaves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be made: No space left on device" in fleet.refused("8")
    assert fleet.files == ["q.yaml"]


def test_a_file_system_without_links_gets_its_files(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    fleet.refit("8", "/w/8")
    assert fleet.files == ["q.yaml", "weights-qwen-8.yaml"]
    assert fleet.weights == Weights(version="8", source=SourceKind.DISK, path="/w/8")
    write(fleet.root / "weights-qwen-9.yaml", "# notes\n")
    settle(fleet.directory)
    assert "is there already" in fleet.refused("9")


def test_mode_and_owner_are_those_of_the_pools_file(fleet: Fleet) -> None:
    path = fleet.root / "q.yaml"
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    settle(fleet.directory)
    fleet.refit("8")
    made, like = (fleet.root / "weights-qwen-8.yaml").stat(), path.stat()
    assert stat.S_IMODE(made.st_mode) == 0o640
    assert (made.st_uid, made.st_gid) == (like.st_uid, like.st_gid)
