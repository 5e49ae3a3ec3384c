"""What ``get -o yaml`` prints can be put into a file, and is the same there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steersman_operator.commands.kinds import ROLLOUT_ENGINE, WEIGHT_VERSION
from steersman_operator.commands.objects import object_of
from steersman_operator.commands.yaml_text import yaml_text
from steersman_operator.manifests import ManifestDirectory, Manifests
from steersman_operator.resources.written import written
from tests.api.support import engine, pool, weight_version
from tests.manifests.support import MemoryLedger

HEAD = "apiVersion: rollout.steersman.io/v1alpha1\n"

EVERYTHING = f"""\
{HEAD}kind: RolloutEngine
metadata: {{name: qwen}}
spec:
  model: "größe 😀"
  default: true
  runtime: sglang
  endpoints:
    static:
    - {{name: e0, url: "http://10.0.0.1:30000", role: prefill, zone: "7", runtime: vllm}}
    - url: http://10.0.0.2:30000
      role: decode
  state: Paused
  drift: Enforce
  weightVersionRef: {{name: w7}}
  refitNonce: "no"
  versionHistoryLimit: 3
  overrides:
  - {{engine: e0, state: Active}}
  - {{engine: "10.0.0.2:30000", state: Active}}
  rollout:
    {{maxUnavailable: 2, mode: InPlace, pauseMode: Keep, promoteAt: AllOpen, paused: true,
     trainerTimeoutSeconds: 60}}
  drain: {{timeoutSeconds: 17, onTimeout: Abort}}
  onUnreachableProxy: Fence
  routing:
    policy: consistent_hashing
    versionPolicy: min-version:042
    maxInFlightPerEngine: 64
    admitUnsynced: false
    stickyPause: true
    hold: {{timeout: 1m30s, maxRequests: 5, maxBytes: 8MiB, slice: 2}}
    timeouts: {{connect: 500ms, answerHead: 1h, streamIdle: 30, clientStall: 1}}
  engineAuth: {{dataKeyFile: data.key, adminKeyFile: ./admin.key}}
---
{HEAD}kind: WeightVersion
metadata: {{name: w7}}
spec: {{model: "größe 😀", version: 042, ordinal: 7, source: {{disk: {{path: "/w: #7"}}}}, digest: "sha256:0", checksum: "0"}}
"""

LITTLE = f"""\
{HEAD}kind: RolloutEngine
metadata: {{name: qwen}}
spec:
  model: m
  rollout: {{maxUnavailable: 25%}}
  routing: {{versionPolicy: latest-only, hold: {{timeout: 0}}}}
---
{HEAD}kind: WeightVersion
metadata: {{name: w7}}
spec: {{model: m, version: "7", source: {{external: {{}}}}}}
"""


def as_json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


def read(directory: Path, text: str) -> Manifests:
    (directory / "fleet.yaml").write_text(text, encoding="utf-8")
    found = ManifestDirectory(directory, ledger=MemoryLedger())
    found.poll()
    assert not found.manifests.problems
    return found.manifests


@pytest.mark.parametrize("text", [EVERYTHING, LITTLE])
@pytest.mark.parametrize("print_", [yaml_text, as_json])
def test_it_reads_back_as_the_same(tmp_path: Path, text: str, print_: Callable[[Any], str]) -> None:
    for name in ("data.key", "admin.key"):
        (tmp_path / name).write_text("key\n")
    before = read(tmp_path, text)
    (qwen,), (w7,) = before.engines, before.versions
    shown = [
        object_of(ROLLOUT_ENGINE, pool("qwen", engine("e0"), spec=written(qwen.spec))),
        object_of(WEIGHT_VERSION, weight_version("w7", spec=written(w7.spec))),
    ]

    after = read(tmp_path, "\n---\n".join(print_(one) for one in shown))

    assert after.engines[0].spec == qwen.spec
    assert after.versions[0].spec == w7.spec
    assert after.engines[0].digest == qwen.digest, "no change of generation"


def test_what_is_in_force_is_printed_with_its_defaults(tmp_path: Path) -> None:
    (qwen,) = read(tmp_path, LITTLE).engines

    assert written(qwen.spec) == {
        "model": "m",
        "default": False,
        "runtime": "unknown",
        "state": "Active",
        "drift": "Observe",
        "versionHistoryLimit": 10,
        "rollout": {
            "maxUnavailable": "25%",
            "mode": "Quiesce",
            "pauseMode": "Abort",
            "promoteAt": "FirstOpen",
            "paused": False,
            "refitTimeoutSeconds": 300,
            "trainerTimeoutSeconds": 1800,
        },
        "drain": {"timeoutSeconds": 600, "onTimeout": "Fail"},
        "onUnreachableProxy": "Wait",
        "routing": {"versionPolicy": "latest-only", "hold": {"timeout": 0}},
    }
