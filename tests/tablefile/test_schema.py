"""The table file: what its keys mean, and what is said of the usual mistakes."""

from pathlib import Path

import pytest

from steersman.documents import parse_document
from steersman.documents.urls import engine_url
from steersman.engine import Control, EngineRow, Gate, Role, Runtime, Trust
from steersman.errors import DocumentError
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.tablefile import TableReader, load_table_file, read_table_file

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def table(text: str, name: str = "table.yaml") -> Table:
    return TableReader().read(read_table_file(parse_document(name, text.encode())))


def rows(engines: str) -> tuple[EngineRow, ...]:
    """The rows of one pool with these engines, each one a YAML mapping without braces."""
    lines = [f"      - {{{engine}}}" for engine in engines.strip().splitlines()]
    return table("pools:\n  - name: p\n    engines:\n" + "\n".join(lines)).engines


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        table(text)
    return [problem.removeprefix("table.yaml:") for problem in caught.value.problems]


def engine_problem(engine: str) -> str:
    """The one thing that is wrong with an engine."""
    (problem,) = problems(f"pools:\n  - name: p\n    engines:\n      - {{{engine}}}\n")
    assert problem.startswith("4: pools[0].engines[0]")
    return problem.removeprefix("4: pools[0].engines[0]").lstrip(".:").strip()


@pytest.mark.parametrize("name", ["table.yaml", "table.toml"])
def test_every_key_of_the_example_arrives(name: str) -> None:
    read = TableReader().read(load_table_file(EXAMPLES / name))

    def math(number: int, **more: object) -> EngineRow:
        fields = {"zone": "rack-1", "version": "7", "trust": Trust.VERIFIED} | more
        return EngineRow(
            id=f"math-{number}",
            url=f"http://10.0.0.1{number}:30000",
            pool="math",
            runtime=Runtime.SGLANG,
            **fields,  # type: ignore[arg-type]
        )

    def judge(number: int, **more: object) -> EngineRow:
        return EngineRow(
            id=f"judge-{number}.example.org:8000",
            url=f"http://judge-{number}.example.org:8000",
            pool="judge",
            runtime=Runtime.VLLM,
            trust=Trust.VERIFIED,
            **more,  # type: ignore[arg-type]
        )

    assert read == Table(
        epoch=Epoch(0, 1),
        pools=(
            PoolRow(name="math", models=("qwen3-8b-math", "math"), default=True, fleet_max="8"),
            PoolRow(
                name="judge",
                models=("llama-3-70b-judge",),
                fleet_max="dpo",
                ordinals={"sft": 1, "dpo": 2},
            ),
        ),
        engines=(
            math(0, version="8"),
            math(1, gate=Gate(open=False), paused=True),
            math(2, zone="rack-2"),
            judge(0, version="dpo"),
            judge(1, paused=True, released=("weights", "kv_cache"), version="sft"),
        ),
    )


def test_defaults_of_an_engine() -> None:
    (row,) = rows("url: http://10.0.0.1:30000")

    assert row == EngineRow(id="10.0.0.1:30000", url="http://10.0.0.1:30000", pool="p")
    assert row.role is Role.PLAIN
    assert row.trust is Trust.UNKNOWN
    assert row.control is Control.ACTIVE


@pytest.mark.parametrize(
    "written", ["10", "042", "1.10", "1e3", "0x10", '"10"', "step-7", "yes", "no", "1_000"]
)
def test_a_version_is_its_text(written: str) -> None:
    (row,) = rows(f"url: http://a, weightVersion: {written}")

    assert row.version == written.strip('"')
    assert row.trust is Trust.VERIFIED


@pytest.mark.parametrize("written", ["10", "1.10", "1e3", "0x10", '"042"', "1_0"])
def test_a_version_is_its_text_in_toml_too(written: str) -> None:
    text = (
        f'[[pools]]\nname = "p"\n[[pools.engines]]\nurl = "http://a"\nweightVersion = {written}\n'
    )

    assert table(text, "table.toml").engines[0].version == written.strip('"')


@pytest.mark.parametrize("written", ["default", "null", "~"])
def test_default_means_unversioned(written: str) -> None:
    (row,) = rows(f"url: http://a, weightVersion: {written}")

    assert (row.version, row.trust) == (None, Trust.UNKNOWN)


def test_trust_as_written_wins() -> None:
    found = rows(
        "url: http://a, weightVersion: 7, trust: uncertain\nurl: http://b, trust: unsynced"
    )

    assert [row.trust for row in found] == [Trust.UNCERTAIN, Trust.UNSYNCED]


def test_both_axes_of_control() -> None:
    found = rows(
        """
        url: http://a, control: active
        url: http://b, control: paused
        url: http://c, control: asleep
        url: http://d, control: asleep, paused: true
        url: http://e, control: asleep, released: [kv_cache]
        url: http://f, paused: true
        url: http://g, released: [weights, cuda_graph]
        url: http://h, control: active, paused: false, released: []
        """
    )

    both = ("weights", "kv_cache")
    assert [(row.control, row.paused, row.released) for row in found] == [
        (Control.ACTIVE, False, ()),
        (Control.PAUSED, True, ()),
        (Control.ASLEEP, False, both),
        (Control.ASLEEP, True, both),
        (Control.ASLEEP, False, ("kv_cache",)),
        (Control.PAUSED, True, ()),
        (Control.ASLEEP, False, ("weights", "cuda_graph")),
        (Control.ACTIVE, False, ()),
    ]


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("control: active, paused: true", "control is active, but paused is set; keep one of the two"),
        ("control: active, released: [weights]", "control is active, but released is set; keep one of the two"),
        ("control: paused, paused: false", "control is paused, but paused is false; keep one of the two"),
        ("control: paused, released: [weights]", "control is paused, but released is set; write control: asleep with paused: true"),
        ("control: asleep, released: []", "control is asleep, but released is empty; delete `released`"),
        ("control: sleeping", "control: must be one of active, paused, asleep, found 'sleeping'; did you mean asleep?"),
        ("gate: true", "gate: must be one of open, closed, found true"),
        ("role: prefil", "role: must be one of plain, prefill, decode, found 'prefil'; did you mean prefill?"),
        ("runtime: SGLang", "runtime: must be one of sglang, vllm, unknown, found 'SGLang'; did you mean sglang?"),
        ("released: [kv-cache]", "released[0]: must be one of weights, kv_cache, cuda_graph, found 'kv-cache'; did you mean kv_cache?"),
        ("weightVersion: true", 'weightVersion: must be a weight version, found true; quote it, as in "7"'),
        ("weightVersion: a b", "weightVersion: a weight version must be visible ASCII without spaces, found ' ' in 'a b'"),
        ("weightVersion: [7]", 'weightVersion: must be a weight version, found a list; quote it, as in "7"'),
        ("weight_version: 7", "weight_version: unknown key `weight_version`; did you mean `weightVersion`?"),
        ("fleetMax: 7", "fleetMax: unknown key `fleetMax`; did you mean `pools[].fleetMax`?"),
        ("id: 7", "id: must be text, found a number; quote it, and begin with a letter"),
        ("id: '7'", "id: must not be a number, as the header x-smg-target-worker takes 7 for an index; write e7"),
        ("id: a/b", "id: must be 1 to 128 letters, digits, `-`, `_`, `.`, `:`, `[` or `]`, found 'a/b'"),
        ("zone: 1", "zone: must be text, found a number; quote it to make it text"),
        ("failed: no", "failed: must be true or false, found text"),
    ],
)  # fmt: skip
def test_one_mistake_in_an_engine_one_sentence(engine: str, problem: str) -> None:
    assert engine_problem(f"url: http://a, {engine}") == problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("10.0.0.1:30000", "must begin with http:// or https://, found '10.0.0.1:30000'; write 'http://10.0.0.1:30000'"),
        ("grpc://a:1", "must begin with http:// or https://, found 'grpc://a:1'"),
        ("http://a:1/v1", "must not have the path '/v1', as routes are sent to the engine's root; write http://a:1"),
        ("http://a:1?x=1", "must not have a query or fragment; write http://a:1"),
        ("http://a:1#", "must not have a query or fragment; write http://a:1"),
        ("http://", "must have a host name or IP address, found 'http://'"),
        ("http://a:0", "must have a port from 1 to 65535, found 'http://a:0'"),
        ("http://a:99999", "is not a URL (Port out of range 0-65535), found 'http://a:99999'"),
        ("http://300.1.1.1", "must have a host name or IP address, found 'http://300.1.1.1'"),
        ("http://[::g]", "is not a URL ('::g' does not appear to be an IPv4 or IPv6 address), found 'http://[::g]'"),
        ("http://[fe80::1%eth0]", "must have an IPv6 address between brackets, found 'http://[fe80::1%eth0]'"),
        ("http://a b", "must be ASCII without spaces, found 'http://a b'"),
        ("http://ä", "must be ASCII without spaces, found 'http://\\xe4'"),
    ],
)  # fmt: skip
def test_what_is_no_engine_url(url: str, problem: str) -> None:
    assert engine_problem(f"url: '{url}'") in {
        f"url: {problem}",
        # Older Pythons leave the brackets to us.
        f"url: must have an IPv6 address between brackets, found {url!r}",
    }


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    problem = engine_problem("url: 'http://user:never-shown@a'")

    assert problem == (
        "url: must not have a user or password (not shown); keys towards engines belong into "
        "`engineAuth`"
    )
    assert "never-shown" not in problem


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("HTTP://Engine-0.Example.ORG:80/", "http://engine-0.example.org"),
        ("https://a:443", "https://a"),
        ("https://a:80", "https://a:80"),
        ("http://[::0001]:30000/", "http://[::1]:30000"),
        ("http://10.0.0.1:30000", "http://10.0.0.1:30000"),
    ],
)
def test_urls_have_one_spelling(written: str, url: str) -> None:
    assert engine_url(written) == url
    assert engine_url(url) == url


def test_everything_taken_twice_is_told_at_its_second_place() -> None:
    assert problems(
        """\
pools:
  - name: a
    models: [m, n]
    default: true
    engines:
      - {id: e0, url: "http://10.0.0.1:80"}
      - {id: e0, url: "http://10.0.0.2"}
      - {id: e2, url: "HTTP://10.0.0.1/", gate: ajar}
      - {url: "http://10.0.0.3"}
      - {url: "https://10.0.0.3"}
      - {url: "http://10.0.0.3:80"}
  - name: a
    model: n
    default: true
"""
    ) == [
        "7: pools[0].engines[1].id: the engine id 'e0' is taken already (line 6)",
        "8: pools[0].engines[2].gate: must be one of open, closed, found 'ajar'",
        "8: pools[0].engines[2].url: the URL 'http://10.0.0.1' is taken already (line 6)",
        "10: pools[0].engines[4].url: the engine id '10.0.0.3' is taken already (line 9)",
        "11: pools[0].engines[5].url: the URL 'http://10.0.0.3' is taken already (line 9)",
        "12: pools[1].name: the pool name 'a' is taken already (line 2)",
        "13: pools[1].model: the model 'n' is taken already (line 3); a model belongs to one pool",
        "14: pools[1].default: another pool is the default already (line 4); keep one",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pools:", "1: pools: has no value; write a list"),
        ("pools: {a: {}}", "1: pools: must be a list, found keys below it"),
        ("engines: []\npools: []", "1: engines: unknown key `engines`; did you mean `pools[].engines`?"),
        ("pools: [{model: m}]", "1: pools[0]: has no `name`; add the key"),
        ("pools: [{name: p, engines: [{id: e}]}]", "1: pools[0].engines[0]: has no `url`; add the key"),
        ("pools: [{name: p, engines: {}}]", "1: pools[0].engines: must be a list, found keys below it"),
        ("pools: [{name: p, engines: ['http://a']}]", "1: pools[0].engines[0]: must have keys below it, found text"),
        ("pools: [{name: p, model: m, models: [n]}]", "1: pools[0]: model and models are both set; keep one of them"),
        ("pools: [{name: p, models: [m, m]}]", "1: pools[0].models: has 'm' twice; keep one of them"),
        ("pools: [{name: p, models: m}]", "1: pools[0].models: must be a list, found text"),
        ("pools: [{name: p, model: 7}]", "1: pools[0].model: must be text, found a number; quote it to make it text"),
        ("pools: [{name: p, fleetMax: default}]", "1: pools[0].fleetMax: cannot be `default`, which engines say before they have a version"),
        ("pools: [{name: p, ordinals: {a: 1, b: 1}}]", "1: pools[0].ordinals: gives 1 to both a and b; ranks must differ"),
        ("pools: [{name: p, ordinals: {a: x}}]", "1: pools[0].ordinals.a: must be a whole number, found text"),
        ("pools: [{name: p, ordinals: {a b: 1}}]", "1: pools[0].ordinals.a b: a weight version must be visible ASCII without spaces, found ' ' in 'a b'"),
    ],
)  # fmt: skip
def test_one_mistake_one_sentence(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_ordinals_are_of_versions_as_written() -> None:
    (pool,) = table("pools: [{name: p, ordinals: {042: 1, 1.10: 2, '42': 3}}]").pools

    assert pool.ordinals == {"042": 1, "1.10": 2, "42": 3}


def test_a_fleet_may_be_empty() -> None:
    assert table("pools: []") == Table(epoch=Epoch(0, 1))
    assert table("pools: [{name: p}]").pools == (PoolRow(name="p"),)


def test_at_most_4096_engines() -> None:
    def fleet(count: int) -> str:
        engines = "".join(f"  - {{url: 'http://e{number}'}}\n" for number in range(count))
        return f"pools:\n- name: p\n  engines:\n{engines}"

    assert len(table(fleet(4096)).engines) == 4096
    assert problems(fleet(4097)) == ["1: pools: has 4097 engines, more than 4096"]
