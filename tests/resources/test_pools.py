"""From resources to pools: what arrives, and who keeps what two claim."""

from pathlib import Path

import msgspec
import pytest

from steersman.engine import Control, Role, Runtime
from steersman.policy import LatestOnly
from steersman_operator.fleet.spec import (
    Drift,
    OnTimeout,
    OnUnreachable,
    PauseMode,
    PoolSpec,
    PromoteAt,
    RolloutMode,
    SourceKind,
    Weights,
)
from steersman_operator.resources import RolloutEngine, WeightVersion, to_pools
from tests.resources.support import engine, engine_text, version, version_text

EVERYTHING = """\
default: true
runtime: sglang
endpoints:
  static:
    - {name: a, url: 'http://h:1', role: prefill, zone: rack-1}
    - {url: 'http://h:2', role: decode, runtime: vllm}
state: Paused
drift: Enforce
weightVersionRef: {name: v7}
refitNonce: again
versionHistoryLimit: 3
overrides:
  - {engine: a, state: Active}
  - {engine: 'h:2', state: Asleep}
rollout:
  {maxUnavailable: 25%, mode: InPlace, pauseMode: Keep, promoteAt: AllOpen, paused: true,
   refitTimeoutSeconds: 45, trainerTimeoutSeconds: 90}
drain: {timeoutSeconds: 30, onTimeout: Abort}
onUnreachableProxy: Fence
routing: {versionPolicy: latest-only, hold: {timeout: 60}, timeouts: {connect: 2.5}}
"""


def aged(resource: RolloutEngine, created: float, **changes: object) -> RolloutEngine:
    return msgspec.structs.replace(resource, created=created, **changes)


def with_engines(name: str, *urls: str, spec: str = "", model: str | None = None) -> RolloutEngine:
    static = "\n".join(f"    - url: {url}" for url in urls)
    text = engine_text(f"endpoints:\n  static:\n{static}\n{spec}", name=name, model=model or name)
    return engine(text, file=f"{name}.yaml")


def weights(name: str, spec: str, *, created: float = 1.0, model: str = "qwen") -> WeightVersion:
    resource = version(
        version_text(name, f"{spec}\nsource: {{external: {{}}}}", model=model), file="v.yaml"
    )
    return msgspec.structs.replace(resource, created=created)


def ids(pool: PoolSpec) -> list[str]:
    return [found.id for found in pool.engines]


def test_everything_arrives_in_the_pool() -> None:
    resource = aged(engine(engine_text(EVERYTHING)), 5.0, generation=4)
    pools = to_pools([resource], [weights("v7", "version: 7")])
    (pool,) = pools.pools
    first, second = pool.engines
    assert (first.id, first.name, first.url) == ("h:1", "a", "http://h:1")
    assert (first.role, first.runtime, first.zone) == (Role.PREFILL, Runtime.SGLANG, "rack-1")
    assert (second.id, second.name) == ("h:2", "")
    assert (second.role, second.runtime, second.zone) == (Role.DECODE, Runtime.VLLM, None)
    assert pool.overrides == {"h:1": Control.ACTIVE, "h:2": Control.ASLEEP}
    assert pool.settings.version_policy == LatestOnly()
    assert (pool.settings.hold.timeout, pool.settings.timeouts.connect) == (60.0, 2.5)
    assert msgspec.structs.replace(
        pool, engines=(), settings=PoolSpec(name="", models=()).settings, overrides={}
    ) == PoolSpec(
        name="qwen",
        models=("qwen",),
        default=True,
        state=Control.PAUSED,
        generation=4,
        drift=Drift.ENFORCE,
        mode=RolloutMode.IN_PLACE,
        pause_mode=PauseMode.KEEP,
        max_unavailable="25%",
        promote_at=PromoteAt.ALL_OPEN,
        drain_timeout=30.0,
        on_timeout=OnTimeout.ABORT,
        on_unreachable=OnUnreachable.FENCE,
        weights=Weights(version="7", source=SourceKind.EXTERNAL, nonce="again"),
        rollout_paused=True,
        refit_timeout=45.0,
        trainer_timeout=90.0,
    )
    assert (pools.conflicts, pools.warnings, pools.keys) == ({}, {}, {})
    # What machines exchange must not have numbers of the parser in it.
    assert msgspec.json.decode(msgspec.json.encode(pool), type=PoolSpec) == pool


def test_the_older_pool_keeps_an_engine() -> None:
    young = aged(
        with_engines(
            "a", "http://h:1", "http://h:2", spec="overrides: [{engine: 'h:1', state: Paused}]"
        ),
        2.0,
    )
    old = aged(with_engines("b", "http://h:1"), 1.0)
    pools = to_pools([young, old], [])
    assert [(pool.name, ids(pool)) for pool in pools.pools] == [("b", ["h:1"]), ("a", ["h:2"])]
    assert pools.pools[1].overrides == {}
    sentence = (
        "b (b.yaml:1) and a (a.yaml:1) are both to have the engine h:1; b has it and keeps it"
    )
    assert pools.conflicts == {"a": (sentence,), "b": (sentence,)}
    assert pools.lost == {"a": (sentence,)}
    assert pools.sentences == [sentence], "said once"


def test_of_two_of_one_age_the_name_decides() -> None:
    pools = to_pools(
        [aged(with_engines("b", "http://h:1"), 1.0), aged(with_engines("a", "http://h:1"), 1.0)], []
    )
    assert [(pool.name, ids(pool)) for pool in pools.pools] == [("a", ["h:1"]), ("b", [])]


def test_one_model_and_one_default_belong_to_the_older() -> None:
    old = aged(with_engines("b", "http://h:1", spec="default: true", model="m"), 1.0)
    young = aged(with_engines("a", "http://h:2", spec="default: true", model="m"), 2.0)
    pools = to_pools([young, old], [])
    assert [(pool.name, pool.models, pool.default) for pool in pools.pools] == [
        ("b", ("m",), True),
        ("a", (), False),
    ]
    assert (
        pools.conflicts["a"]
        == pools.conflicts["b"]
        == (
            "b (b.yaml:1) and a (a.yaml:1) both serve the model 'm'; b has it and keeps it",
            "b (b.yaml:1) and a (a.yaml:1) both want to be the default pool; b has it and keeps it",
        )
    )


def test_who_has_something_keeps_it_from_an_older_one() -> None:
    """An edit of a manifest must not take a model or an engine from a pool that works."""
    holder = aged(with_engines("qwen", "http://h:1", spec="default: true"), 5.0)
    llama = aged(with_engines("llama", "http://h:2"), 1.0)
    before = to_pools([holder, llama], [])
    assert before.conflicts == {}
    edited = aged(
        with_engines("llama", "http://h:1", "http://h:2", spec="default: true", model="qwen"), 1.0
    )

    pools = to_pools([holder, edited], [], before.holders)

    assert {pool.name: (pool.models, pool.default, ids(pool)) for pool in pools.pools} == {
        "qwen": (("qwen",), True, ["h:1"]),
        "llama": ((), False, ["h:2"]),
    }
    assert list(pools.lost) == ["llama"]
    assert len(pools.lost["llama"]) == 3
    # As soon as it does not ask for it any more, the other one has it, and keeps it.
    gone = to_pools([edited], [], pools.holders)
    assert (gone.pools[0].models, gone.conflicts) == (("qwen",), {})
    back = to_pools([holder, edited], [], gone.holders)
    assert {pool.name: pool.models for pool in back.pools} == {"qwen": (), "llama": ("qwen",)}


def test_the_same_holders_come_of_the_same_again() -> None:
    """Otherwise each look would be written, and each sentence would change."""
    both = [aged(with_engines(name, "http://h:1", model="m"), 1.0) for name in "ba"]
    first = to_pools(both, [])
    assert to_pools(both, [], first.holders) == first


def test_a_fleet_without_resources_forgets_nothing() -> None:
    holders = to_pools([with_engines("a", "http://h:1")], []).holders
    assert to_pools([], [], holders).holders == holders


def test_engines_beyond_a_table_are_those_that_nobody_has_yet() -> None:
    small = aged(with_engines("b", "http://x:1"), 2.0)
    holders = to_pools([small], []).holders
    full = aged(with_engines("a", *(f"http://h:{port}" for port in range(1, 4097))), 1.0)
    pools = to_pools([full, small], [], holders)
    assert [(pool.name, len(pool.engines)) for pool in pools.pools] == [("a", 4095), ("b", 1)]
    assert list(pools.lost) == ["a"]


def test_localhost_is_one_engine_by_name_and_by_number() -> None:
    static = (
        "endpoints: {static: [{url: 'http://localhost:1'}, {url: 'http://localhost'},\n"
        "  {url: 'http://localhost.lan:1'}]}\noverrides: [{engine: 'localhost:1', state: Paused}]"
    )
    one = aged(engine(engine_text(static, name="a"), file="a.yaml"), 1.0)
    two = aged(with_engines("b", "http://127.0.0.1:1"), 2.0)
    pools = to_pools([one, two], [])
    first, plain, other = pools.pools[0].engines
    assert (first.id, first.name, first.url) == ("127.0.0.1:1", "localhost:1", "http://localhost:1")
    assert (plain.id, other.id) == ("127.0.0.1", "localhost.lan:1")
    assert pools.pools[0].overrides == {"127.0.0.1:1": Control.PAUSED}
    assert ids(pools.pools[1]) == []
    assert list(pools.lost) == ["b"]


def test_a_fleet_has_no_more_engines_than_a_table() -> None:
    full = aged(with_engines("a", *(f"http://h:{port}" for port in range(1, 4097))), 1.0)
    pools = to_pools([full, aged(with_engines("b", "http://x:1"), 2.0)], [])
    assert [len(pool.engines) for pool in pools.pools] == [4096, 0]
    assert list(pools.conflicts) == ["b"]


def test_ordinals_are_those_of_the_versions_of_the_model() -> None:
    versions = [
        weights("sft", "version: sft\nordinal: 1"),
        weights("dpo", "version: dpo\nordinal: 2"),
        weights("raw", "version: raw"),
        weights("other", "version: x\nordinal: 9", model="llama"),
    ]
    (pool,) = to_pools([with_engines("qwen", "http://h:1")], versions).pools
    assert pool.ordinals == {"sft": 1, "dpo": 2}
    (pool,) = to_pools([with_engines("qwen", "http://h:1")], [versions[2]]).pools
    assert pool.ordinals == {}


def test_of_two_ranks_or_names_the_older_counts() -> None:
    versions = [
        weights("c", "version: w\nordinal: 1", created=3.0),
        weights("b", "version: v\nordinal: 2", created=2.0),
        weights("a", "version: v\nordinal: 1", created=1.0),
    ]
    pools = to_pools([with_engines("qwen", "http://h:1")], versions)
    assert pools.pools[0].ordinals == {"v": 1}
    same = "a (v.yaml:1) and b (v.yaml:1) both name the version v of 'qwen'; the older counts"
    rank = "a (v.yaml:1) and c (v.yaml:1) both have the ordinal 1; the older counts"
    assert pools.warnings == {
        "WeightVersion/a": (same, rank),
        "WeightVersion/b": (same,),
        "WeightVersion/c": (rank,),
    }


QWEN_9 = """\
endpoints:
  static:
    - url: http://h:1
weightVersionRef:
  name: v9
"""


def referring(spec: str = QWEN_9, *, model: str = "qwen") -> RolloutEngine:
    return engine(engine_text(spec, model=model), file="qwen.yaml")


def disk(
    name: str, number: str, path: str, *, more: str = "", model: str = "qwen"
) -> WeightVersion:
    spec = f"version: {number}\nsource: {{disk: {{path: {path}}}}}\n{more}"
    return version(version_text(name, spec, model=model), file="v.yaml")


def test_a_reference_becomes_the_weights_of_the_pool() -> None:
    pools = to_pools([referring()], [disk("v8", "8", "/w/8"), disk("v9", "9", "/w/9")])
    assert pools.pools[0].weights == Weights(version="9", source=SourceKind.DISK, path="/w/9")
    assert pools.warnings == {}

    summed = disk("v9", "9", "/w/9", more="digest: sha256:0\nchecksum: ab12")
    pools = to_pools([referring(QWEN_9 + "refitNonce: again\n")], [summed])
    assert pools.pools[0].weights == Weights(
        version="9", source=SourceKind.DISK, path="/w/9", nonce="again", checksum="ab12"
    )
    pools = to_pools([referring()], [weights("v9", "version: step-9")])
    assert pools.pools[0].weights == Weights(version="step-9", source=SourceKind.EXTERNAL)


def test_without_a_reference_the_weights_stay_as_they_are() -> None:
    before = to_pools([referring()], [disk("v9", "9", "/w/9")])
    pools = to_pools(
        [referring("endpoints: {}")], [disk("v9", "9", "/w/9")], targets=before.targets
    )
    assert pools.pools[0].weights is None
    assert pools.targets == {}


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (
            [],
            (
                "there is no WeightVersion v9, so no weights are loaded; add one of 'qwen', or have "
                "`steersman refit` make it"
            ),
        ),
        (
            [disk("math-7", "7", "/w/7"), disk("v8", "8", "/w/8", model="llama")],
            (
                "there is no WeightVersion v9, so no weights are loaded; name one of math-7, or add it"
            ),
        ),
        (
            [disk(f"w-{number}", str(number), "/w") for number in range(10, 17)],
            (
                "there is no WeightVersion v9, so no weights are loaded; name one of w-12, w-13, w-14, "
                "w-15, w-16 and 2 more, or add it"
            ),
        ),
        (
            [disk("v-9", "9", "/w/9")],
            "there is no WeightVersion v9, so no weights are loaded; did you mean v-9?",
        ),
        (
            [disk("v9", "9", "/w/9", model="llama"), disk("math-7", "7", "/w/7")],
            (
                "v9 (v.yaml:1) is of the model 'llama', not 'qwen', so no weights are loaded; name one "
                "of math-7, or add it"
            ),
        ),
    ],
)
def test_a_reference_that_cannot_be_followed_is_told_with_line_key_and_remedy(
    versions: list[WeightVersion], said: str
) -> None:
    pools = to_pools([referring()], versions)
    assert pools.warnings == {
        "RolloutEngine/qwen": (f"qwen.yaml:11: spec.weightVersionRef.name: {said}",)
    }
    assert pools.pools[0].weights is None


@pytest.mark.parametrize("versions", [[], [disk("v9", "9", "/w/9", model="llama")]])
def test_the_weights_of_before_stay_what_is_wanted(versions: list[WeightVersion]) -> None:
    """A typing error must not end a rollout half way."""
    eight = referring(QWEN_9.replace("v9", "v8") + "refitNonce: n\n")
    before = to_pools([eight], [disk("v8", "8", "/w/8")])

    pools = to_pools([referring()], versions, before.holders, before.targets)

    assert pools.pools[0].weights == Weights(
        version="8", source=SourceKind.DISK, path="/w/8", nonce="n"
    )
    (sentence,) = pools.warnings["RolloutEngine/qwen"]
    assert ", so version 8 stays what is wanted; " in sentence
    # And once more, as after a restart.
    again = to_pools([referring()], versions, pools.holders, pools.targets)
    assert again.pools == pools.pools
    assert to_pools([], [], targets=again.targets).targets == again.targets


def test_weights_of_another_model_never_stay() -> None:
    before = to_pools([referring()], [disk("v9", "9", "/w/9")])
    pools = to_pools([referring(model="llama")], [disk("v9", "9", "/w/9")], targets=before.targets)
    assert pools.pools[0].weights is None
    assert pools.targets == {}


def test_keys_go_by_engine(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("sk-1")
    text = engine_text("endpoints: {static: [{url: 'http://h:1'}]}\nengineAuth: {dataKeyFile: k}")
    pools = to_pools([engine(text, base=tmp_path), with_engines("b", "http://h:2")], [])
    assert {name: keys.data for name, keys in pools.keys.items()} == {"h:1": "sk-1"}
    assert "sk-1" not in repr(pools)
