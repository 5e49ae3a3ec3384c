"""The configuration file of a proxy.

Defaults are those of ``steersman_proxy.settings`` and ``steersman.settings``; each attribute's
docstring is its line in ``docs/configuration/proxy.md``.
"""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator

from steersman.documents.model import Model
from steersman.documents.routing import Routing
from steersman.documents.values import (
    Duration,
    Kind,
    Port,
    Positive,
    PositiveDuration,
    PositiveSize,
    Secret,
    Size,
    word,
)
from steersman_proxy.config.names import (
    control_address,
    header_name,
    host,
    origin,
    pool_name,
)
from steersman_proxy.settings import AdapterKind, LogFormat, LogLevel, ProxySettings

DEFAULTS = ProxySettings()

Address = Annotated[str, PlainValidator(control_address), Kind("control address")]
Host = Annotated[str, PlainValidator(host), Kind("host name or IP address")]
HeaderName = Annotated[str, PlainValidator(header_name), Kind("header name")]
Origin = Annotated[str, PlainValidator(origin), Kind("origin")]
PoolName = Annotated[str, PlainValidator(pool_name), Kind("pool name")]


class Listen(Model):
    """Where clients connect."""

    host: Host = DEFAULTS.host
    """Address to listen on; `0.0.0.0` for every IPv4 interface, `::` for every IPv6 one."""
    port: Port = DEFAULTS.port
    """TCP port; 0 takes any free one and logs it."""
    reuse_port: bool = DEFAULTS.reuse_port
    """Whether several proxies of this machine share the port; the system spreads new connections. One
    that follows an operator takes its share with its first table, or after 10 s without one."""
    adapter: Annotated[
        AdapterKind,
        PlainValidator(word("splice", "aiohttp")),
        Kind("`splice` or `aiohttp`"),
    ] = DEFAULTS.adapter
    """How requests are read: `splice` passes the bytes of regular requests on and leaves all others to
    aiohttp, which `aiohttp` uses for every request. Engines and clients see the same; the latter
    costs several times the CPU."""


class Metrics(Model):
    """Where probes, metrics and `/status` are served."""

    host: Host = DEFAULTS.metrics_host
    """Address to listen on."""
    port: Port = DEFAULTS.metrics_port
    """TCP port of `/metrics`, `/status`, `/livez` and `/readyz`."""


class Rl(Model):
    """Awareness of weight versions and control states."""

    enabled: bool = DEFAULTS.rl_enabled
    """Off makes the proxy a plain relay: no version filter, stamps, hold or RL metrics."""
    buffered_answer_cap: Size = DEFAULTS.buffered_answer_cap
    """A JSON answer up to this size is read to its end before its head is sent, so that its stamp
    is the engine's own; a longer one carries the version known at dispatch."""


class Auth(Model):
    """Keys of clients, sent as `Authorization: Bearer KEY`."""

    holds_secrets: ClassVar[bool] = True

    api_keys: list[Secret] = Field(default_factory=list)
    """Keys that clients may send. Without any key everybody may use the proxy."""
    api_keys_file: str | None = None
    """A file of further keys, one a line; empty lines and lines that begin with `#` do not count."""
    admin_key: Secret | None = None
    """The key for routes that change engines, such as `/flush_cache`; also valid everywhere else."""
    admin_key_file: str | None = None
    """A file whose only key is the admin key."""


class Cors(Model):
    """Access from browsers."""

    allowed_origins: list[Origin] = Field(default_factory=list)
    """Origins that may read answers, such as `https://example.org`, or only `"*"`."""


class Limits(Model):
    """Limits of a request."""

    max_body_bytes: PositiveSize = DEFAULTS.max_body_bytes
    """Largest body, also of a chunked request; a larger one is answered with 413."""


class EngineAuth(Model):
    """The key that the proxy sends to the engines of a pool, whatever the client sent."""

    holds_secrets: ClassVar[bool] = True

    api_key: Secret | None = None
    """The key."""
    api_key_file: str | None = None
    """A file whose only key it is."""


class Pool(Model):
    """Settings of one pool of the table."""

    routing: Routing = Routing()
    """What differs from the top-level `routing`."""
    engine_auth: EngineAuth = EngineAuth()
    """Key towards the engines."""
    request_id_header: HeaderName | None = None
    """Header in which the proxy gives each request an id of its own, if the engines take one, so
    that it can abort the request there."""


class Probe(Model):
    """Asking engines for their health, by a route that is safe for their runtime."""

    enabled: bool = DEFAULTS.probe.enabled
    """Whether engines are asked; without, only failing requests show that an engine is down."""
    interval: PositiveDuration = DEFAULTS.probe.interval
    """Between two probes of an engine."""
    timeout: PositiveDuration = DEFAULTS.probe.timeout
    """For one probe."""
    failures: Positive = DEFAULTS.probe.failures
    """So many failed probes in a row take an engine out."""
    successes: Positive = DEFAULTS.probe.successes
    """So many good probes in a row bring it back."""


class Passive(Model):
    """Health as requests find it."""

    failures: Positive = DEFAULTS.passive.failures
    """So many failed connections in a row take an engine out."""
    eject_for: PositiveDuration = DEFAULTS.passive.eject_for
    """For how long."""


class Health(Model):
    """When an engine counts as down."""

    probe: Probe = Probe()
    """Asking."""
    passive: Passive = Passive()
    """Noticing."""


class Upstream(Model):
    """Connections to engines."""

    idle_timeout: PositiveDuration = DEFAULTS.upstream_idle
    """When an idle connection is closed. Engines close theirs after 5 s by default; the proxy must
    be first, or a request can meet a closing connection."""


class Logging(Model):
    """The log on standard error."""

    format: Annotated[LogFormat, PlainValidator(word("text", "json")), Kind("`text` or `json`")] = (
        DEFAULTS.log_format
    )
    """For people or for machines."""
    level: Annotated[
        LogLevel,
        PlainValidator(word("debug", "info", "warning", "error")),
        Kind("`debug`, `info`, `warning` or `error`"),
    ] = DEFAULTS.log_level
    """The least severe that is logged."""
    access: bool = DEFAULTS.access_log
    """Whether each request is logged in one line."""


class Shutdown(Model):
    """What happens on SIGTERM."""

    drain: Duration = DEFAULTS.drain
    """How long `/readyz` fails while requests are still accepted."""
    grace: Duration = DEFAULTS.grace
    """From SIGTERM until whatever still runs is cut; includes `drain`."""


class TableSource(Model):
    """Where the fleet table comes from."""

    file: str | None = None
    """The table file; `--table` overrides it."""
    poll: PositiveDuration = DEFAULTS.table_poll
    """How often the file is looked at."""


class Control(Model):
    """Following an operator, which is the other source of the fleet table."""

    addresses: list[Address] = Field(default_factory=list)
    """Control sockets of the operators: `ipc:///path/to/socket` or `tcp://host:port`. A host name is
    looked up again and again and stands for every address that it resolves to. `--control`
    overrides it."""
    uid: str | None = None
    """By what the operator knows this proxy. In a cluster the pod's uid; without, it is taken from
    the environment variable `POD_UID`, or else made from host name and process number."""
    server_key_file: str | None = None
    """File with the operator's public CURVE key; needed for `tcp://`."""
    secret_key_file: str | None = None
    """File with the proxy's secret CURVE key; needed for `tcp://`."""
    insecure: bool = False
    """Allows `tcp://` without keys: whoever reaches the socket can then stop or misdirect this
    proxy."""


def _none_is_empty(value: Any) -> Any:
    """As with any section: one whose keys are all commented out is empty."""
    return {} if value is None else value


class ProxyConfig(Model):
    """The whole file. Relative paths in it are relative to its own directory."""

    listen: Listen = Listen()
    metrics: Metrics = Metrics()
    rl: Rl = Rl()
    auth: Auth = Auth()
    cors: Cors = Cors()
    limits: Limits = Limits()
    routing: Routing = Routing()
    pools: Annotated[dict[PoolName, Pool], BeforeValidator(_none_is_empty)] = Field(
        default_factory=dict
    )
    """Settings of single pools, by the names that the table gives them."""
    health: Health = Health()
    upstream: Upstream = Upstream()
    logging: Logging = Logging()
    shutdown: Shutdown = Shutdown()
    table: TableSource = TableSource()
    control: Control = Control()
