"""Pairs of settings that cannot both be meant. Each message names both keys."""

import ipaddress
from collections.abc import Iterator, Mapping

from steersman.documents.document import KeyPath
from steersman.documents.routing import Finding, routing_contradictions
from steersman.policy import AnyVersion
from steersman.settings import PoolSettings
from steersman_proxy.config.schema import ProxyConfig

ENGINE_KEEP_ALIVE = 5.0
"""Seconds after which engines close an idle connection, unless they are told otherwise."""


def contradictions(config: ProxyConfig, pools: Mapping[KeyPath, PoolSettings]) -> Iterator[Finding]:
    """What makes a configuration unusable.

    ``pools`` are the routing settings in force, by the path of the section that makes them; the
    top-level one comes first.
    """
    yield from _places(config)
    yield from _keys(config)
    yield from _durations(config)
    yield from _control(config)
    if "*" in config.cors.allowed_origins and len(config.cors.allowed_origins) > 1:
        yield Finding(
            ("cors", "allowedOrigins"), 'has "*" and other origins; keep only one of the two'
        )
    inherited: set[str] = set()
    for path, settings in pools.items():
        findings = list(_routing(path, settings, max_body_bytes=config.limits.max_body_bytes))
        # A pool that inherits a contradiction is not told about it again.
        yield from (finding for finding in findings if finding.message not in inherited)
        if path == ("routing",):
            inherited = {finding.message for finding in findings}


def warnings(config: ProxyConfig, pools: Mapping[KeyPath, PoolSettings]) -> Iterator[Finding]:
    """What is legal and yet probably not meant."""
    idle = config.upstream.idle_timeout
    if idle >= ENGINE_KEEP_ALIVE:
        yield Finding(
            ("upstream", "idleTimeout"),
            f"is {_seconds(idle)}, but engines close idle connections after "
            f"{_seconds(ENGINE_KEEP_ALIVE)} by default; requests may meet a closing connection",
        )
    if not config.rl.enabled:
        for path, settings in pools.items():
            if settings.version_policy != AnyVersion():
                yield Finding(
                    (*path, "versionPolicy"),
                    f"is {settings.version_policy}, which has no effect while rl.enabled is false",
                )


def _places(config: ProxyConfig) -> Iterator[Finding]:
    listen, metrics = config.listen, config.metrics
    if listen.port and listen.port == metrics.port and _overlap(listen.host, metrics.host):
        yield Finding(
            ("metrics", "port"),
            f"is {metrics.port}, as listen.port is on the same address; choose another",
            ("listen", "port"),
        )


def _keys(config: ProxyConfig) -> Iterator[Finding]:
    auth = config.auth
    if auth.admin_key is not None and auth.admin_key_file is not None:
        yield Finding(("auth", "adminKeyFile"), "and auth.adminKey are both set; keep one of them")
    for name, pool in config.pools.items():
        if pool.engine_auth.api_key is not None and pool.engine_auth.api_key_file is not None:
            path = ("pools", name, "engineAuth", "apiKeyFile")
            yield Finding(path, "and apiKey beside it are both set; keep one of them")


def _control(config: ProxyConfig) -> Iterator[Finding]:
    control = config.control
    if control.addresses and config.table.file is not None:
        yield Finding(
            ("control", "addresses"),
            "and table.file are both set; the fleet table comes from one of the two",
            ("table", "file"),
        )
    if (control.server_key_file is None) != (control.secret_key_file is None):
        yield Finding(
            ("control", "serverKeyFile" if control.server_key_file else "secretKeyFile"),
            "is needed together with its counterpart: control.serverKeyFile and "
            "control.secretKeyFile, or neither",
        )
    remote = [address for address in control.addresses if not address.startswith("ipc://")]
    if remote and control.server_key_file is None and not control.insecure:
        yield Finding(
            ("control", "addresses"),
            f"has {remote[0]}, which needs control.serverKeyFile and control.secretKeyFile (or "
            "control.insecure: true, where nobody else can reach it)",
        )


def _durations(config: ProxyConfig) -> Iterator[Finding]:
    probe, shutdown = config.health.probe, config.shutdown
    if probe.timeout > probe.interval:
        yield Finding(
            ("health", "probe", "timeout"),
            f"is {_seconds(probe.timeout)}, longer than health.probe.interval "
            f"({_seconds(probe.interval)}); probes of an engine would overlap",
            ("health", "probe", "interval"),
        )
    if shutdown.drain > shutdown.grace:
        yield Finding(
            ("shutdown", "drain"),
            f"is {_seconds(shutdown.drain)}, longer than shutdown.grace "
            f"({_seconds(shutdown.grace)}), which includes it",
            ("shutdown", "grace"),
        )


def _routing(path: KeyPath, settings: PoolSettings, *, max_body_bytes: int) -> Iterator[Finding]:
    hold = settings.hold
    for key, message, other in routing_contradictions(settings):
        yield Finding((*path, *key), message, (*path, *other))
    if hold.timeout > 0 and hold.max_bytes < max_body_bytes:
        yield Finding(
            (*path, "hold", "maxBytes"),
            f"is {hold.max_bytes}, below limits.maxBodyBytes ({max_body_bytes}); "
            "the largest legal request could never wait",
            ("limits", "maxBodyBytes"),
        )


def _overlap(left: str, right: str) -> bool:
    """Whether two hosts to listen on may be the same address."""
    return left == right or _is_every_address(left) or _is_every_address(right)


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _seconds(value: float) -> str:
    return f"{value:g} s"
