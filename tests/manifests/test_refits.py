"""New weights, carried into the files of a directory."""

import pytest

from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.manifests import (
    Edited,
    RefitWish,
    RolloutVerb,
)
from steersman_operator.resources import to_pools
from tests.manifests.refitting import POOL, Fleet
from tests.manifests.support import settle, write
from tests.resources.support import engine_text, version_text


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
