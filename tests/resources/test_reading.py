"""What can be written in a resource, and what is said of mistakes."""

from pathlib import Path

import pytest

from steersman_operator.resources import GROUP, State
from tests.resources.support import engine, engine_text, problems, read, version, version_text

TWO = (
    "endpoints:\n  static:\n    - {name: a, url: 'http://h:1'}\n    - {name: b, url: 'http://h:2'}"
)


def test_the_shortest_resource_has_the_defaults() -> None:
    resource = engine(engine_text())
    assert (resource.name, resource.file, resource.line) == ("qwen", "f.yaml", 1)
    assert resource.spec.state is State.ACTIVE
    assert resource.spec.endpoints.static == []
    assert resource.spec.rollout.max_unavailable == "1"
    assert resource.spec.drain.timeout_seconds == 600


def test_output_of_kubectl_can_be_pasted() -> None:
    text = f"""\
apiVersion: {GROUP}/v1alpha1
kind: RolloutEngine
metadata:
  annotations: {{note: hello}}
  creationTimestamp: 2026-01-01T00:00:00Z
  generation: 4
  labels: {{team: rl}}
  managedFields: [{{manager: kubectl, fieldsV1: {{"f:spec": {{}}}}}}]
  name: qwen
  namespace: training
  resourceVersion: "123"
  uid: 6d1e
spec:
  model: qwen
status:
  observedGeneration: 4
"""
    assert engine(text).name == "qwen"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1", "f.yaml:1: has no `kind`; write kind: RolloutEngine or WeightVersion"),
        (
            engine_text().replace("kind: RolloutEngine", "kind: Rolloutengine"),
            "f.yaml:2: kind: must be written RolloutEngine, found 'Rolloutengine'",
        ),
        (
            engine_text().replace("RolloutEngine", "Service"),
            (
                "f.yaml:2: kind: must be one of RolloutEngine, WeightVersion, found 'Service'; "
                "keep other kinds out of this directory"
            ),
        ),
        (
            engine_text().replace("RolloutEngine", "List"),
            "f.yaml:2: kind: is List; make each item a document of its own (`---`)",
        ),
        (
            engine_text().replace("v1alpha1", "v2"),
            (
                "f.yaml:1: apiVersion: must be rollout.steersman.io/v1alpha1, found "
                "'rollout.steersman.io/v2' (another version of it)"
            ),
        ),
        (
            engine_text(name="Qwen_3"),
            (
                "f.yaml:4: metadata.name: must be 1 to 63 lower-case letters, digits or `-`, with a "
                "letter or digit at both ends, found 'Qwen_3'"
            ),
        ),
        (
            engine_text("stat: Paused"),
            "f.yaml:7: spec.stat: unknown key `stat`; did you mean `state`?",
        ),
        (
            engine_text("state: paused"),
            (
                "f.yaml:7: spec.state: must be one of Active, Paused, Asleep, found 'paused'; "
                "did you mean Paused?"
            ),
        ),
        (
            engine_text("endpoints:\n  serviceName: x\n  port: 30000"),
            (
                "f.yaml:8: spec.endpoints.serviceName: finds engines in a Kubernetes cluster, and this "
                "fleet has none; list the engines in endpoints.static"
            ),
        ),
        (
            engine_text(f"{TWO}\noverrides:\n- {{pod: a, state: Paused}}"),
            (
                "f.yaml:12: spec.overrides[0].pod: names a pod of a Kubernetes cluster, and this fleet "
                "has none; name an engine of endpoints.static with `engine`"
            ),
        ),
        (
            engine_text(f"{TWO}\noverrides:\n- {{engine: c, state: Paused}}"),
            (
                "f.yaml:12: spec.overrides[0].engine: must be one of a, b, found 'c'; these are the "
                "engines of endpoints.static"
            ),
        ),
        (
            engine_text(
                f"{TWO}\noverrides:\n- {{engine: a, state: Paused}}\n- {{engine: a, state: Asleep}}"
            ),
            (
                "f.yaml:13: spec.overrides[1].engine: the engine 'a' is taken already (line 12); "
                "keep one of them"
            ),
        ),
        (
            engine_text(
                "endpoints:\n  static:\n  - url: http://127.0.0.1:1\n  - url: http://localhost:1"
            ),
            (
                "f.yaml:10: spec.endpoints.static[1].url: the address '127.0.0.1:1' is taken already "
                "(line 9); keep one of them"
            ),
        ),
        (
            engine_text("endpoints:\n  static:\n  - url: http://h:1\n  - url: http://H:1/"),
            (
                "f.yaml:10: spec.endpoints.static[1].url: the address 'h:1' is taken already (line 9); "
                "keep one of them"
            ),
        ),
        (
            engine_text(
                "endpoints:\n  static:\n  - {url: 'http://h:1', name: a}\n"
                "  - {url: 'http://h:2', name: a}"
            ),
            (
                "f.yaml:10: spec.endpoints.static[1].name: the name 'a' is taken already (line 9); "
                "keep one of them"
            ),
        ),
        (
            engine_text("state: Asleep\ndrain: {onTimeout: ProceedInFlight}"),
            (
                "f.yaml:8: spec.drain.onTimeout: is ProceedInFlight, but state is Asleep (line 7): an "
                "engine that gives up its memory can crash under requests; write Fail or Abort"
            ),
        ),
        (
            engine_text(
                f"{TWO}\noverrides:\n- {{engine: a, state: Asleep}}\n"
                "drain: {onTimeout: ProceedInFlight}"
            ),
            (
                "f.yaml:13: spec.drain.onTimeout: is ProceedInFlight, but engine a is to be Asleep "
                "(line 12): an engine that gives up its memory can crash under requests; write Fail "
                "or Abort"
            ),
        ),
        (
            engine_text("rollout: {maxUnavailable: 0%}"),
            (
                "f.yaml:7: spec.rollout.maxUnavailable: must be a whole number above 0, or a percentage "
                "from 1% to 100% such as 25%, found '0%'"
            ),
        ),
        (
            engine_text("rollout: {maxUnavailable: 0}"),
            "f.yaml:7: spec.rollout.maxUnavailable: must be at least 1, found 0",
        ),
        (
            engine_text("drain: {timeoutSeconds: 10m}"),
            "f.yaml:7: spec.drain.timeoutSeconds: must be a whole number of seconds, without a unit",
        ),
        (
            engine_text("routing:\n  hold: {timeout: 5s, maxRequests: 0}"),
            (
                "f.yaml:8: spec.routing.hold.maxRequests: is 0, but hold.timeout is 5 s; to switch "
                "holding off, set hold.timeout to 0"
            ),
        ),
        (
            engine_text("endpoints:\n  static:\n  - {url: 'http://h:1', name: 0}"),
            (
                "f.yaml:9: spec.endpoints.static[0].name: must be text, found a number; "
                "quote it, and begin with a letter"
            ),
        ),
    ],
)
def test_a_mistake_is_told_at_its_line(text: str, said: str) -> None:
    found = problems(text)
    assert said in found
    assert all(line.startswith("f.yaml:") for line in found)


def test_a_key_in_the_wrong_place_is_not_shown() -> None:
    assert problems(engine_text("engineAuth: {sk-very-secret: x}")) == [
        (
            "f.yaml:7: spec.engineAuth: unknown key (not shown, as it may be a secret); known here are "
            "adminKeyFile, dataKeyFile"
        )
    ]


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    text = engine_text("state: x\nfoo: 1") + "---\n" + version_text("v", "version: a b")
    assert [line.split(" ")[0] for line in problems(text)] == [
        "f.yaml:7:",
        "f.yaml:8:",
        "f.yaml:13:",
        "f.yaml:15:",
    ]


def test_a_missing_model_is_told_beside_keys_of_a_cluster() -> None:
    text = engine_text("endpoints: {serviceName: x}").replace("  model: qwen\n", "")
    assert "f.yaml:5: spec: has no `model`; add the key" in problems(text)


def test_a_weight_version_is_text_as_written() -> None:
    resource = version(version_text("v", "version: 1.10\nsource: {external: {}}"))
    assert resource.spec.version == "1.10"
    assert resource.spec.source.external is not None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("source: {}", "must have `disk: {path: ...}` or `external: {}`"),
        (
            "source: {disk: {path: /w}, external: {}}",
            "has both `disk` and `external`; keep one of them",
        ),
        ("source: {disk: }", "has no `path`; add the key"),
        ("digest: x", "has no `source`; add the key"),
    ],
)
def test_weights_have_exactly_one_source(source: str, said: str) -> None:
    found = problems(version_text("v", f"version: 7\n{source}"))
    assert [line.partition("spec")[2].partition(": ")[2] for line in found] == [said]


def test_an_empty_choice_of_the_source_counts() -> None:
    resource = version(version_text("v", "version: 7\nsource:\n  external:"))
    assert resource.spec.source.external is not None


def test_keys_are_read_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "data.key").write_text("# ours\nsk-data-1\n")
    (tmp_path / "admin.key").write_text("sk-admin-1")
    text = engine_text("engineAuth: {dataKeyFile: data.key, adminKeyFile: admin.key}")
    resource = engine(text, base=tmp_path)
    assert (resource.keys.data, resource.keys.admin) == ("sk-data-1", "sk-admin-1")
    assert resource.data_key_file == str(tmp_path / "data.key")
    assert read(text, base=tmp_path).key_files == (
        str(tmp_path / "data.key"),
        str(tmp_path / "admin.key"),
    )
    assert "sk-" not in repr(resource)


def test_a_bad_key_file_is_a_problem_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "two.key").write_text("sk-data-1\nsk-data-2\n")
    text = engine_text("engineAuth:\n  dataKeyFile: two.key\n  adminKeyFile: none.key")
    found = read(text, base=tmp_path)
    assert found.resources == ()
    assert found.problems == (
        f"f.yaml:8: spec.engineAuth.dataKeyFile: {tmp_path}/two.key has 2 keys, where one is needed",
        f"f.yaml:9: spec.engineAuth.adminKeyFile: {tmp_path}/none.key does not exist",
    )
    assert len(found.key_files) == 2


def test_layout_and_written_defaults_do_not_change_the_digest() -> None:
    plain = engine(engine_text("routing: {hold: {timeout: 60}}\n"))
    other = engine("# words\n" + engine_text("state: Active\nrouting:\n  hold:\n    timeout: 1m"))
    assert plain.digest == other.digest
    assert engine(engine_text("state: Paused")).digest != engine(engine_text()).digest
    assert (
        engine(engine_text("routing: {versionPolicy: latest-only}")).digest
        != engine(engine_text("routing: {versionPolicy: 'min-version:3'}")).digest
    )
