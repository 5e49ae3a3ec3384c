"""From a configuration file and flags to :class:`~steersman_proxy.settings.ProxySettings`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from steersman.curve_keys import read_curve_key
from steersman.documents.document import Document, KeyPath, Problem
from steersman.documents.key_files import read_key, read_keys
from steersman.documents.load import load_document
from steersman.documents.model import problems_of
from steersman.documents.routing import Finding, pool_settings
from steersman.settings import PoolSettings
from steersman.table import Table
from steersman_proxy.config.contradictions import contradictions, warnings
from steersman_proxy.config.overrides import Override
from steersman_proxy.config.schema import Control, Pool, ProxyConfig
from steersman_proxy.settings import (
    ControlSettings,
    PassiveHealth,
    ProbeSettings,
    ProxySettings,
)

R = TypeVar("R")


class LoadedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, and sentences about what is legal and yet probably not meant."""

    settings: ProxySettings
    warnings: tuple[str, ...] = ()


def load_config(path: str | Path | None, *, overrides: Sequence[Override] = ()) -> LoadedConfig:
    """Read the configuration; ``None`` is no file, which leaves defaults and overrides.

    :raises DocumentError: with all problems of the file and of the flags.
    """
    document = Document.empty() if path is None else load_document(path)
    return read_config(document, overrides=overrides)


def read_config(document: Document, *, overrides: Sequence[Override] = ()) -> LoadedConfig:
    """As :func:`load_config`, from a document in memory.

    :raises DocumentError: with all its problems.
    """
    for override in overrides:
        document.override(override.path, override.value, flag=override.flag)
    return _Reading(document).finish()


def pools_without_row(settings: ProxySettings, table: Table) -> list[str]:
    """A warning for each pool that the configuration names and the table does not have.

    Not an error: a pool may be added to the table later.
    """
    known = {row.name for row in table.pools}
    listed = ", ".join(sorted(known)) or "none"
    return [
        f"pools.{name}: the table has no pool of this name; it has {listed}"
        for name in settings.pools
        if name not in known
    ]


class _Reading:
    """One document on its way to settings; collects problems until the end."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[Problem] = []
        self._base = Path(document.path).parent

    def finish(self) -> LoadedConfig:
        config = self._validate()
        routing = dict(_routing_in_force(config))
        # A wrong value stands as its default by now, which contradicts nothing the writer meant.
        wrong = {problem.path for problem in self._problems}
        self._problems += [
            self._placed(finding)
            for finding in contradictions(config, routing)
            if finding.path not in wrong and finding.other not in wrong
        ]
        settings = self._settings(config, routing)
        if self._problems:
            raise self._document.error(self._problems)
        found = [
            self._document.problem(finding.path, finding.message)
            for finding in warnings(config, routing)
        ]
        return LoadedConfig(settings=settings, warnings=tuple(found))

    def _placed(self, finding: Finding) -> Problem:
        """Of the two keys of a contradiction, one may be a default that stands nowhere."""
        written = self._document.is_written
        at = finding.other if written(finding.other) and not written(finding.path) else None
        return Problem(finding.path, finding.message, at=at)

    def _validate(self) -> ProxyConfig:
        """The config, with defaults where keys are wrong, so that all else is checked too."""
        data = self._document.data
        try:
            return ProxyConfig.model_validate(data)
        except ValidationError as error:
            self._problems += problems_of(error, ProxyConfig)
            wrong = [tuple(detail["loc"]) for detail in error.errors(include_url=False)]
        try:
            return ProxyConfig.model_validate(_without(data, wrong))
        except ValidationError:
            raise self._document.error(self._problems) from None

    def _settings(self, config: ProxyConfig, routing: dict[KeyPath, PoolSettings]) -> ProxySettings:
        api_keys, admin_key = self._client_keys(config)
        pools = config.pools
        engine_keys = {
            name: key for name, pool in pools.items() if (key := self._engine_key(name, pool))
        }
        probe, passive = config.health.probe, config.health.passive
        table_file = config.table.file
        return ProxySettings(
            host=config.listen.host,
            reuse_port=config.listen.reuse_port,
            adapter=config.listen.adapter,
            port=config.listen.port,
            metrics_host=config.metrics.host,
            metrics_port=config.metrics.port,
            rl_enabled=config.rl.enabled,
            buffered_answer_cap=config.rl.buffered_answer_cap,
            max_body_bytes=config.limits.max_body_bytes,
            api_keys=api_keys,
            admin_key=admin_key,
            engine_keys=engine_keys,
            allowed_origins=tuple(dict.fromkeys(config.cors.allowed_origins)),
            defaults=routing["routing",],
            pools={name: routing["pools", name, "routing"] for name in pools},
            probe=ProbeSettings(
                enabled=probe.enabled,
                interval=probe.interval,
                timeout=probe.timeout,
                failures=probe.failures,
                successes=probe.successes,
            ),
            passive=PassiveHealth(failures=passive.failures, eject_for=passive.eject_for),
            upstream_idle=config.upstream.idle_timeout,
            log_format=config.logging.format,
            log_level=config.logging.level,
            access_log=config.logging.access,
            drain=config.shutdown.drain,
            grace=config.shutdown.grace,
            table_file=str(self._base / table_file) if table_file is not None else None,
            table_poll=config.table.poll,
            control=self._control(config.control),
            rid_header={
                name: pool.request_id_header
                for name, pool in pools.items()
                if pool.request_id_header is not None
            },
        )

    def _control(self, control: Control) -> ControlSettings | None:
        if not control.addresses:
            return None
        server, secret = control.server_key_file, control.secret_key_file
        path: KeyPath = ("control",)
        return ControlSettings(
            addresses=tuple(dict.fromkeys(control.addresses)),
            uid=control.uid,
            server_key=server and self._read((*path, "serverKeyFile"), read_curve_key, server),
            secret_key=secret and self._read((*path, "secretKeyFile"), read_curve_key, secret),
            insecure=control.insecure,
        )

    def _client_keys(self, config: ProxyConfig) -> tuple[tuple[str, ...], str | None]:
        auth = config.auth
        keys = [key.get_secret_value() for key in auth.api_keys]
        if auth.api_keys_file is not None:
            keys += self._read(("auth", "apiKeysFile"), read_keys, auth.api_keys_file) or ()
        admin = auth.admin_key.get_secret_value() if auth.admin_key else None
        admin_path: KeyPath = ("auth", "adminKey")
        if admin is None and auth.admin_key_file is not None:
            admin_path = ("auth", "adminKeyFile")
            admin = self._read(admin_path, read_key, auth.admin_key_file)
        if admin is not None and admin in keys:
            self._problems.append(
                Problem(admin_path, "is one of auth.apiKeys too, so every client would be an admin")
            )
        return tuple(dict.fromkeys(keys)), admin

    def _engine_key(self, name: str, pool: Pool) -> str | None:
        auth = pool.engine_auth
        if auth.api_key is not None:
            return auth.api_key.get_secret_value()
        if auth.api_key_file is None:
            return None
        return self._read(("pools", name, "engineAuth", "apiKeyFile"), read_key, auth.api_key_file)

    def _read(self, path: KeyPath, read: Callable[[Path], R], file: str) -> R | None:
        try:
            return read(self._base / file)
        except ValueError as error:
            self._problems.append(Problem(path, str(error)))
            return None


def _routing_in_force(config: ProxyConfig) -> Iterator[tuple[KeyPath, PoolSettings]]:
    """The routing settings of all pools without their own, then of each pool of the file."""
    defaults = pool_settings(config.routing, base=PoolSettings())
    yield ("routing",), defaults
    for name, pool in config.pools.items():
        yield ("pools", name, "routing"), pool_settings(pool.routing, base=defaults)


def _without(data: dict[str, Any], wrong: Sequence[KeyPath]) -> dict[str, Any]:
    """A copy of ``data`` without the keys at or around ``wrong``; a list goes as a whole."""
    copy: dict[str, Any] = _copied(data)
    for path in wrong:
        target: Any = copy
        for key, following in zip(path, (*path[1:], None), strict=True):
            if not isinstance(target, dict) or key not in target:
                break
            if isinstance(target[key], dict) and following is not None and following != "[key]":
                target = target[key]
                continue
            del target[key]
            break
    return copy


def _copied(data: Any) -> Any:
    """Mappings copied at every level, so that members can be taken out."""
    return {key: _copied(value) for key, value in data.items()} if isinstance(data, dict) else data
