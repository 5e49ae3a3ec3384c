"""Flags of the command line win over the file, and are named when they are wrong."""

import argparse
from pathlib import Path

import pytest

from steersman.documents.model import paths_of
from steersman.errors import DocumentError
from steersman.policy import LatestOnly
from steersman.settings import RoutingPolicy
from steersman_proxy.config import FLAGS, Override, add_flags, load_config, overrides_of
from steersman_proxy.config.overrides import SWITCHES
from steersman_proxy.config.schema import ProxyConfig


def flags(*words: str) -> list[Override]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return overrides_of(parser.parse_args(words))


def test_without_flags_nothing_is_overridden() -> None:
    assert flags() == []


def test_every_flag_stands_for_a_key_of_the_file() -> None:
    known = set(paths_of(ProxyConfig))

    assert {".".join(flag.path) for flag in (*FLAGS, *SWITCHES)} <= known


def test_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("k\n")
    (tmp_path / "sub").mkdir()
    config = tmp_path / "sub" / "proxy.yaml"
    config.write_text(
        "listen: {host: 10.0.0.1, port: 1}\n"
        "routing: {policy: random, hold: {timeout: 5s}}\n"
        "rl: {enabled: false}\n"
        "table: {file: other.yaml}\n"
    )

    given = flags(
        "--port", "8080", "--metrics-port", "0", "--policy", "sticky", "--version-policy",
        "latest-only", "--hold-timeout", "2m", "--max-in-flight-per-engine", "3", "--rl",
        "--no-access-log", "--log-format", "json", "--log-level", "debug", "--api-keys-file", "keys",
        "--table", "table.yaml",
    )  # fmt: skip
    settings = load_config(config, overrides=given).settings

    assert (settings.host, settings.port, settings.metrics_port) == ("10.0.0.1", 8080, 0)
    assert settings.defaults.policy is RoutingPolicy.STICKY
    assert settings.defaults.version_policy == LatestOnly()
    assert settings.defaults.hold.timeout == 120
    assert settings.defaults.max_in_flight_per_engine == 3
    assert settings.rl_enabled
    assert not settings.access_log
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    # Relative to where the command runs, not to the file.
    assert settings.api_keys == ("k",)
    assert settings.table_file == str(tmp_path / "table.yaml")


def test_a_number_of_seconds_may_be_given_bare() -> None:
    assert load_config(None, overrides=flags("--hold-timeout", "90")).settings.defaults.hold == (
        load_config(None, overrides=flags("--hold-timeout", "1m30s")).settings.defaults.hold
    )


def test_problems_name_the_flag() -> None:
    given = flags(
        "--port", "99999", "--policy", "fastest", "--hold-timeout", "nan", "--host", "a:1"
    )

    with pytest.raises(DocumentError) as caught:
        load_config(None, overrides=given)

    assert caught.value.problems == [
        (
            "--host: listen.host: must be a host name or an IP address without scheme and port, found "
            "'a:1'"
        ),
        "--port: listen.port: must be a port number from 0 to 65535, found 99999",
        (
            "--policy: routing.policy: must be one of round_robin, random, power_of_two, load_only, "
            "sticky, consistent_hashing, found 'fastest'"
        ),
        "--hold-timeout: routing.hold.timeout: must be a finite number, found nan",
    ]


def test_a_flag_that_contradicts_the_file_names_both(tmp_path: Path) -> None:
    config = tmp_path / "proxy.yaml"
    config.write_text("metrics: {port: 9000}\n")

    with pytest.raises(DocumentError) as caught:
        load_config(config, overrides=flags("--port", "9000"))

    assert caught.value.problems == [
        f"{config}:1: metrics.port: is 9000, as listen.port is on the same address; choose another"
    ]


def test_a_flag_replaces_a_wrong_value_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "proxy.yaml"
    config.write_text("listen: nonsense\n")

    assert load_config(config, overrides=flags("--port", "9")).settings.port == 9
