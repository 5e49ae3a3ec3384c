"""New weights, carried into the files of a directory: what is made, changed and removed."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from steersman.errors import (
    EditImpossible,
    EditInvalid,
    ManifestChanged,
    ManifestNotWritable,
    ManifestUnusable,
    RequestError,
    ResourceNotFound,
)
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.manifests import (
    Edited,
    ManifestDirectory,
    ManifestMemory,
    RefitWish,
    RolloutVerb,
)
from steersman_operator.manifests.refits import (
    NothingToUndo,
    TargetChanged,
)
from steersman_operator.resources import to_pools
from tests.manifests.support import MemoryLedger, problems, settle, write
from tests.resources.support import engine_text, version_text

POOL = "# ours\n" + engine_text(
    "endpoints: {static: [{url: 'http://h:1'}]} # engines\nversionHistoryLimit: 2\n", model="Q/q"
)


class Fleet:
    """A directory, and the operators that come and go over it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "fleet"
        self.root.mkdir()
        self.memory = root / "memory.json"
        self.ledger = MemoryLedger()
        write(self.root / "q.yaml", POOL)
        self.restart()

    def restart(self) -> None:
        self.directory = ManifestDirectory(
            self.root, ledger=self.ledger, memory=ManifestMemory(self.memory)
        )
        settle(self.directory)

    def refit(self, version: str | None = None, path: str | None = None, **more: str) -> Edited:
        return self.directory.refit("qwen", RefitWish(version=version, path=path, **more))

    def rollout(self, verb: RolloutVerb, **more: str) -> Edited:
        return self.directory.rollout("qwen", verb=verb, **more)

    @property
    def text(self) -> str:
        return (self.root / "q.yaml").read_text()

    @property
    def files(self) -> list[str]:
        return sorted(found.name for found in self.root.iterdir())

    @property
    def weights(self) -> Weights | None:
        """What the core would be told, by an operator that reads everything anew."""
        fresh = ManifestDirectory(self.root, ledger=self.ledger)
        fresh.poll()
        assert problems(fresh) == ()
        kept = to_pools(self.directory.manifests.engines, self.directory.manifests.versions)
        assert kept == to_pools(fresh.manifests.engines, fresh.manifests.versions)
        assert kept.warnings == {}
        return kept.pools[0].weights

    def refused(self, version: str | None = None, path: str | None = None, **more: str) -> str:
        """The code of the refusal; nothing is changed by it."""
        before = (self.text, self.files, self.directory.manifests)
        with pytest.raises(RequestError) as caught:
            self.refit(version, path, **more)
        assert (self.text, self.files, self.directory.manifests) == before
        return f"{caught.value.status} {caught.value.code}: {caught.value}"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


# --- new weights ----------------------------------------------------------------------------------


def test_weights_on_disk_get_a_weight_version_and_the_pool_refers_to_it(fleet: Fleet) -> None:
    done = fleet.refit("42", "/ckpt/42")

    assert done == Edited(
        generation=2,
        changed=True,
        message="qwen is to have 42 (Disk /ckpt/42) now",
        target=Weights(version="42", source=SourceKind.DISK, path="/ckpt/42"),
    )
    assert fleet.text == POOL.replace(
        "  model: Q/q\n", "  model: Q/q\n  weightVersionRef:\n    name: qwen-42\n"
    )
    assert (fleet.root / "weights-qwen-42.yaml").read_text() == (
        """\
# Made by `steersman refit`, and removed by it once these weights are no longer used.
apiVersion: rollout.steersman.io/v1alpha1
kind: WeightVersion
metadata:
  name: "qwen-42"
  labels: {app.kubernetes.io/created-by: steersman}
spec:
  model: "Q/q"
  version: "42"
  source: {disk: {path: "/ckpt/42"}}
"""
    )
    assert fleet.weights == done.target
    # No look at the directory is needed, and the next one finds nothing new.
    assert fleet.directory.poll() is False
    assert fleet.directory.poll() is False


def test_without_a_path_the_trainer_transfers_them(fleet: Fleet) -> None:
    done = fleet.refit("step-7")

    assert done.message == "qwen is to have step-7 (External) now"
    assert fleet.weights == done.target == Weights(version="step-7", source=SourceKind.EXTERNAL)


def test_a_checksum_and_a_path_of_any_characters_arrive(fleet: Fleet) -> None:
    path = '/größe 😀/it\'s: #7 \\ "w"'
    fleet.refit("42", path, checksum="8c1f")

    assert fleet.weights == Weights(
        version="42", source=SourceKind.DISK, path=path, checksum="8c1f"
    )


def test_the_same_again_changes_nothing(fleet: Fleet) -> None:
    fleet.refit("42", "/ckpt/42")
    before = (fleet.text, fleet.files, fleet.directory.manifests)

    for path in ("/ckpt/42", None):
        done = fleet.refit("42", path)
        assert (done.changed, done.generation) == (False, 2)
        assert done.message == (
            "qwen is to have 42 (Disk /ckpt/42) already; `--again` has it loaded once more"
        )
    assert (fleet.text, fleet.files, fleet.directory.manifests) == before


def test_a_weight_version_of_somebody_else_is_used(fleet: Fleet) -> None:
    write(
        fleet.root / "mine.yaml",
        version_text("blessed", "version: 042\nsource: {disk: {path: /w}}", model="Q/q"),
    )
    settle(fleet.directory)

    fleet.refit("042")

    assert "name: blessed" in fleet.text
    assert fleet.files == ["mine.yaml", "q.yaml"]
    assert fleet.weights == Weights(version="042", source=SourceKind.DISK, path="/w")


def test_of_two_of_one_version_the_one_that_is_meant_is_taken(fleet: Fleet) -> None:
    two = [
        version_text(name, f"version: 8\nsource: {{disk: {{path: /{name}}}}}", model="Q/q")
        for name in ("b", "a")
    ]
    write(fleet.root / "two.yaml", "---\n".join(two))
    settle(fleet.directory)

    fleet.refit("8", "/b")
    assert "    name: b\n" in fleet.text
    assert fleet.refit("8").changed is False
    fleet.refit("8", "/a")
    assert "    name: a\n" in fleet.text


@pytest.mark.parametrize(
    ("version", "path", "more", "said"),
    [
        (
            "8",
            "/other",
            {},
            (
                "409 version_taken: 8 of 'Q/q' are other weights already: qwen-8 (weights-qwen-8.yaml:2) "
                "has Disk /w/8"
            ),
        ),
        (
            "8",
            None,
            {"checksum": "f00"},
            (
                "409 version_taken: 8 of 'Q/q' are other weights already: qwen-8 (weights-qwen-8.yaml:2) "
                "has Disk /w/8, checksum not given"
            ),
        ),
        (
            "a b",
            None,
            {},
            (
                "422 edit_invalid: a weight version must be visible ASCII without spaces, found ' ' "
                "in 'a b'"
            ),
        ),
        (
            "default",
            None,
            {},
            (
                "422 edit_invalid: a version cannot be `default`, which engines say before they have "
                "one"
            ),
        ),
        (None, "/w", {}, "422 edit_invalid: a path or a checksum is of a version; name it, too"),
        (
            "9",
            "/w\n9",
            {},
            (
                "422 edit_invalid: refit is not possible: weights-qwen-9.yaml:10: spec.source.disk.path:"
                " must be 1 to 512 printable characters, found '/w\\n9'"
            ),
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_nothing(
    fleet: Fleet, version: str | None, path: str | None, more: dict[str, str], said: str
) -> None:
    fleet.refit("8", "/w/8")
    assert fleet.refused(version, path, **more) == said


def test_weights_of_another_model_are_other_weights(fleet: Fleet) -> None:
    write(fleet.root / "l.yaml", engine_text(name="llama", model="llama"))
    settle(fleet.directory)
    fleet.refit("8", "/q/8")
    done = fleet.directory.refit("llama", RefitWish(version="8", path="/l/8"))

    assert done.target == Weights(version="8", source=SourceKind.DISK, path="/l/8")


def test_versions_get_names_that_people_recognise(fleet: Fleet) -> None:
    names = {}
    for version in ("Step_7", "step-7", "step.7", "x" * 100, "-", "0042"):
        fleet.refit(version)
        (name,) = [line.split()[1] for line in fleet.text.splitlines() if "    name: " in line]
        names[version] = name.strip('"')

    assert names["step-7"] == "qwen-step-7"
    assert names["0042"] == "qwen-0042"
    assert names["Step_7"].startswith("qwen-step-7-")
    assert names["step.7"].startswith("qwen-step-7-")
    assert len(set(names.values())) == len(names)
    assert all(len(name) <= 63 for name in names.values())
    assert fleet.weights == Weights(version="0042", source=SourceKind.EXTERNAL)


def test_a_name_that_somebody_else_has_is_left_to_him(fleet: Fleet) -> None:
    write(
        fleet.root / "mine.yaml",
        version_text("qwen-42", "version: 41\nsource: {external: {}}", model="Q/q"),
    )
    settle(fleet.directory)

    assert fleet.refit("42", "/w").target == Weights(
        version="42", source=SourceKind.DISK, path="/w"
    )


def test_once_more(fleet: Fleet) -> None:
    assert fleet.refused(nonce="1") == (
        "409 no_target: qwen has no version that could be loaded once more"
    )
    fleet.refit("42", "/ckpt/42")
    done = fleet.refit(nonce="monday")

    assert done.message == "qwen is to load 42 (Disk /ckpt/42) once more"
    assert fleet.weights == Weights(
        version="42", source=SourceKind.DISK, path="/ckpt/42", nonce="monday"
    )
    assert "    name: qwen-42\n  refitNonce: monday\n" in fleet.text
    # A client whose answer was lost asks for the same once more, and gets it once.
    assert fleet.refit(nonce="monday").changed is False
    both = fleet.refit("43", nonce="tuesday")
    assert both.target == Weights(version="43", source=SourceKind.EXTERNAL, nonce="tuesday")


def test_what_keeps_it_from_beginning_is_told(fleet: Fleet) -> None:
    fleet.rollout(RolloutVerb.PAUSE)
    assert fleet.refit("8").message == (
        "qwen is to have 8 (External) now; its rollout is paused, `steersman rollout resume qwen` "
        "begins it"
    )
    write(fleet.root / "q.yaml", fleet.text.replace("model: Q/q", "model: Q/q\n  state: Asleep"))
    settle(fleet.directory)
    assert fleet.refit("9").message == (
        "qwen is to have 9 (External) now; it is asleep, and gets them when it is woken"
    )


def test_a_reference_that_leads_nowhere_is_mended_by_a_refit(fleet: Fleet) -> None:
    write(fleet.root / "q.yaml", POOL + "  weightVersionRef: {name: nowhere} # ?\n")
    settle(fleet.directory)
    fleet.refit("8")
    assert fleet.text.endswith("  weightVersionRef: {name: qwen-8} # ?\n")
    assert fleet.weights == Weights(version="8", source=SourceKind.EXTERNAL)


def test_where_versions_have_ranks_new_weights_get_the_next_one(fleet: Fleet) -> None:
    others = [
        version_text("sft", "version: sft\nordinal: 3\nsource: {external: {}}", model="Q/q"),
        version_text("raw", "version: raw\nsource: {external: {}}", model="Q/q"),
        version_text("big", "version: big\nordinal: 90\nsource: {external: {}}", model="other"),
    ]
    write(fleet.root / "mine.yaml", "---\n".join(others))
    settle(fleet.directory)
    fleet.refit("dpo", "/w/dpo")
    assert (fleet.root / "weights-qwen-dpo.yaml").read_text().endswith("\n  ordinal: 4\n")
    fleet.refit("sft")
    fleet.refit("grpo")
    pools = to_pools(fleet.directory.manifests.engines, fleet.directory.manifests.versions)
    assert pools.pools[0].ordinals == {"sft": 3, "dpo": 4, "grpo": 5}


# --- two writers, and what is interrupted ---------------------------------------------------------


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


# --- pausing and undoing --------------------------------------------------------------------------


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
