"""The configuration file: what it sets, and what is said of the usual mistakes."""

from pathlib import Path

import pytest

from steersman.documents import parse_document
from steersman.engine import EngineRow
from steersman.errors import DocumentError
from steersman.policy import LatestOnly, MaxStaleness
from steersman.settings import BreakerSettings, HoldSettings, PoolSettings, RoutingPolicy, Timeouts
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.config import LoadedConfig, load_config, pools_without_row
from steersman_proxy.config.load import read_config
from steersman_proxy.settings import PassiveHealth, ProbeSettings, ProxySettings

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def read(text: str, name: str = "proxy.yaml") -> LoadedConfig:
    return read_config(parse_document(name, text.encode()))


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read(text)
    return caught.value.problems


def test_without_a_file_everything_has_its_default() -> None:
    loaded = load_config(None)

    assert loaded.settings == ProxySettings()
    assert loaded.warnings == ()


def test_a_file_without_keys_is_the_defaults() -> None:
    assert read("{}").settings == ProxySettings()
    assert read("auth:\nhealth:\n  probe:\npools:\n").settings == ProxySettings()


@pytest.mark.parametrize("name", ["proxy.yaml", "proxy.toml"])
def test_every_key_of_the_example_arrives(name: str) -> None:
    loaded = load_config(EXAMPLES / name)

    defaults = PoolSettings(
        policy=RoutingPolicy.POWER_OF_TWO,
        version_policy=MaxStaleness(1),
        hold=HoldSettings(timeout=600, max_requests=16384, max_bytes=2 * 1024**3, slice=64),
        timeouts=Timeouts(connect=5, answer_head=1800, stream_idle=300, client_stall=120),
        max_in_flight_per_engine=256,
    )
    math = PoolSettings(
        policy=RoutingPolicy.CONSISTENT_HASHING,
        version_policy=LatestOnly(),
        hold=HoldSettings(timeout=120),
        max_in_flight_per_engine=256,
    )
    assert loaded.warnings == ()
    assert loaded.settings == ProxySettings(
        host="0.0.0.0",
        metrics_host="0.0.0.0",
        api_keys=("sk-example-1", "sk-example-2"),
        admin_key="sk-example-admin",
        engine_keys={"math": "sk-example-engine"},
        allowed_origins=("https://dashboard.example.org",),
        defaults=defaults,
        pools={"math": math},
        probe=ProbeSettings(enabled=True),
        passive=PassiveHealth(),
        log_format="json",
        table_file=str(EXAMPLES / "table.yaml"),
        rid_header={"math": "X-Request-Id"},
    )


def test_a_pool_inherits_what_it_does_not_set() -> None:
    settings = read(
        """
        routing:
          policy: random
          hold: {timeout: 1m, slice: 8}
        pools:
          a:
            routing: {hold: {timeout: 0}, stickyPause: true}
          b: {}
        """
    ).settings

    assert settings.pools["a"].policy is RoutingPolicy.RANDOM
    assert settings.pools["a"].hold == HoldSettings(timeout=0, slice=8)
    assert settings.pools["a"].sticky_pause
    assert settings.pools["b"] == settings.defaults
    assert settings.pool("b") is settings.pools["b"]
    assert settings.pool("not in the file") is settings.defaults


def test_the_breaker_is_set_and_switched_off_by_pool() -> None:
    settings = read(
        """
        routing: {breaker: {failures: 3}}
        pools:
          a: {routing: {breaker: {enabled: false}}}
          b: {routing: {breaker: {cooldown: 1m}}}
        """
    ).settings

    assert settings.defaults.breaker == BreakerSettings(failures=3)
    assert settings.pools["a"].breaker == BreakerSettings(enabled=False, failures=3)
    assert settings.pools["b"].breaker == BreakerSettings(failures=3, cooldown=60)


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    assert problems(
        """\
listen:
  prot: 8080
  host: http://proxy
metrics:
  port: true
port: 30000
routing:
  policy: power-of-two
  versionPolicy: latest
  hold: {timeout: 10 min, maxRequests: 1.5}
  timeouts: {connect: -1, answerHead: .inf}
cors: {allowedOrigins: ["https://a.org/"]}
health: {probe: {interval: 2s, timeout: 3s}}
logging: [json]
max_body_bytes: 1
shutdown: {drain: 1m, grace: 30s}
pools:
  - math
"""
    ) == [
        "proxy.yaml:2: listen.prot: unknown key `prot`; did you mean `port`?",
        (
            "proxy.yaml:3: listen.host: must be a host name or an IP address without scheme and port, "
            "found 'http://proxy'"
        ),
        "proxy.yaml:5: metrics.port: must be a port number from 0 to 65535, found true",
        "proxy.yaml:6: port: unknown key `port`; did you mean `listen.port`?",
        (
            "proxy.yaml:8: routing.policy: must be one of round_robin, random, power_of_two, "
            "load_only, sticky, consistent_hashing, found 'power-of-two'; did you mean power_of_two?"
        ),
        (
            "proxy.yaml:9: routing.versionPolicy: 'latest' is not a version policy; use any, "
            "latest-only, min-version:<v> or max-staleness:<k>."
        ),
        (
            "proxy.yaml:10: routing.hold.timeout: must be seconds or a text such as 500ms, 30s, 10m "
            "or 1h, found '10 min'"
        ),
        "proxy.yaml:10: routing.hold.maxRequests: must be a whole number, found 1.5",
        "proxy.yaml:11: routing.timeouts.connect: must not be negative, found -1",
        "proxy.yaml:11: routing.timeouts.answerHead: must be a finite number, found .inf",
        (
            "proxy.yaml:12: cors.allowedOrigins[0]: must be an origin without a path; write "
            "'https://a.org'"
        ),
        (
            "proxy.yaml:13: health.probe.timeout: is 3 s, longer than health.probe.interval (2 s); "
            "probes of an engine would overlap"
        ),
        "proxy.yaml:14: logging: must have keys below it, found a list",
        (
            "proxy.yaml:15: max_body_bytes: unknown key `max_body_bytes`; did you mean "
            "`limits.maxBodyBytes`?"
        ),
        (
            "proxy.yaml:16: shutdown.drain: is 60 s, longer than shutdown.grace (30 s), which "
            "includes it"
        ),
        "proxy.yaml:17: pools: must have keys below it, found a list",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "health: {probe: {interval: 2s}}",
            (
                "proxy.yaml:1: health.probe.timeout: is 5 s, longer than health.probe.interval (2 s); "
                "probes of an engine would overlap"
            ),
        ),
        (
            "limits: {maxBodyBytes: 4GiB}",
            (
                "proxy.yaml:1: routing.hold.maxBytes: is 2147483648, below limits.maxBodyBytes "
                "(4294967296); the largest legal request could never wait"
            ),
        ),
        (
            "routing: {hold: {maxRequests: 0}}\npools: {a: {routing: {policy: random}}}",
            (
                "proxy.yaml:1: routing.hold.maxRequests: is 0, but hold.timeout is 600 s; to switch "
                "holding off, set hold.timeout to 0"
            ),
        ),
        (
            "pools:\n  a:\n    routing: {timeouts: {answerHead: 1s}}",
            (
                "proxy.yaml:3: pools.a.routing.timeouts.connect: is 5 s, longer than "
                "timeouts.answerHead (1 s)"
            ),
        ),
        (
            "routing: {timeouts: {answerHead: 4h}}",
            (
                "proxy.yaml:1: routing.timeouts.stale: is 7200 s, not above timeouts.answerHead "
                "(14400 s); it is meant to end what the other timeouts do not"
            ),
        ),
        (
            "pools:\n  a:\n    routing: {timeouts: {stale: 1800}}",
            (
                "proxy.yaml:3: pools.a.routing.timeouts.stale: is 1800 s, not above "
                "timeouts.answerHead (1800 s); it is meant to end what the other timeouts do not"
            ),
        ),
        (
            "listen: {port: 9000}\nmetrics: {host: 0.0.0.0, port: 9000}",
            (
                "proxy.yaml:2: metrics.port: is 9000, as listen.port is on the same address; choose "
                "another"
            ),
        ),
        (
            'cors: {allowedOrigins: ["*", "https://a.org"]}',
            (
                'proxy.yaml:1: cors.allowedOrigins: has "*" and other origins; keep only one of the '
                "two"
            ),
        ),
        (
            "pools: {a: {engineAuth: {apiKey: k, apiKeyFile: f}}}",
            (
                "proxy.yaml:1: pools.a.engineAuth.apiKeyFile: and apiKey beside it are both set; keep "
                "one of them"
            ),
        ),
        (
            "pools: {bad name: {}}",
            (
                "proxy.yaml:1: pools.bad name: must be 1 to 128 letters, digits, `-`, `_`, `.` or `/`, "
                "beginning with a letter or digit, found 'bad name'"
            ),
        ),
        ("rl: {enabled: yes}", "proxy.yaml:1: rl.enabled: must be true or false, found text"),
        ("rl: {enabled: 1}", "proxy.yaml:1: rl.enabled: must be true or false, found a number"),
        (
            "rl: {enabled: }",
            "proxy.yaml:1: rl.enabled: has no value; write true or false, or delete the key",
        ),
        (
            "logging: {level: warn}",
            (
                "proxy.yaml:1: logging.level: must be one of debug, info, warning, error, found "
                "'warn'; did you mean warning?"
            ),
        ),
        (
            "table: {poll: 0}",
            "proxy.yaml:1: table.poll: must be longer than 0",
        ),
    ],
)
def test_one_mistake_one_sentence(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_contradictions_are_also_found_beside_other_mistakes() -> None:
    """But not with the default that stands in for a wrong value."""
    found = problems("shutdown: {drain: 4m}\nhealth: {probe: {interval: x, timeout: 20s}}")

    assert [problem.split(": ")[1] for problem in found] == [
        "shutdown.drain",
        "health.probe.interval",
    ]


def test_what_is_legal_but_odd_is_a_warning() -> None:
    loaded = read(
        "upstream: {idleTimeout: 10s}\n"
        "rl: {enabled: false}\n"
        "pools:\n"
        "  a:\n"
        "    routing: {versionPolicy: latest-only}\n"
    )

    assert loaded.settings.upstream_idle == 10
    assert loaded.warnings == (
        (
            "proxy.yaml:1: upstream.idleTimeout: is 10 s, but engines close idle connections after "
            "5 s by default; requests may meet a closing connection"
        ),
        (
            "proxy.yaml:5: pools.a.routing.versionPolicy: is latest-only, which has no effect while "
            "rl.enabled is false"
        ),
    )


def test_the_same_port_on_two_addresses_is_no_contradiction() -> None:
    settings = read("listen: {host: 10.0.0.1, port: 80}\nmetrics: {port: 80}").settings
    assert settings.port == settings.metrics_port == 80
    # 0 is any free port, which is another one each time.
    assert read("listen: {port: 0}\nmetrics: {port: 0}").settings.port == 0


def test_a_pool_without_a_row_in_the_table_is_a_warning() -> None:
    settings = read("pools: {a: {}, b: {}}").settings
    table = Table(
        epoch=Epoch(0, 1),
        pools=(PoolRow(name="a"), PoolRow(name="c")),
        engines=(EngineRow(id="e", url="http://e", pool="a"),),
    )

    assert pools_without_row(settings, table) == [
        "pools.b: the table has no pool of this name; it has a, c"
    ]


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "keys").write_text("k\n")
    config = tmp_path / "conf" / "proxy.toml"
    config.write_text('[auth]\napiKeysFile = "keys"\n[table]\nfile = "../table.yaml"\n')

    settings = load_config(config).settings

    assert settings.api_keys == ("k",)
    assert Path(settings.table_file or "").resolve() == tmp_path / "table.yaml"
