"""What a proxy process runs on.

Made once at start from the configuration file and the command line (``steersman_proxy.config``),
then handed around unchanged. All durations are in seconds, all sizes in bytes.

This module is the one place of the proxy's defaults: the models of the file and the pages of
``docs/configuration`` take them from here.
"""

from typing import Any, Literal

import msgspec

from steersman.settings import PoolSettings

MIB = 1024**2

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
AdapterKind = Literal["splice", "aiohttp"]


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Asking each engine for its health, by a route that is safe for its runtime."""

    enabled: bool = False
    interval: float = 10.0
    timeout: float = 5.0
    """For one probe; never longer than ``interval``, so that probes of one engine do not overlap."""
    failures: int = 3
    """So many failed probes in a row take an engine out."""
    successes: int = 1
    """So many good probes in a row bring it back."""


class PassiveHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health as requests find it: connection failures in a row take an engine out for a while."""

    failures: int = 3
    eject_for: float = 5.0


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Following an operator through its control socket. Its ``repr`` shows no secret."""

    addresses: tuple[str, ...]
    """``ipc://`` and ``tcp://`` addresses; a host name stands for all that it resolves to."""
    uid: str | None = None
    """By what the operator knows this proxy; ``None`` takes the environment's POD_UID, or else the
    host's name and the number of the process."""
    server_key: str | None = None
    """The operator's public CURVE key."""
    secret_key: str | None = None
    """The proxy's own secret CURVE key."""
    insecure: bool = False
    """Whether TCP without keys is meant."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["secret_key"] = "<set>" if self.secret_key else None
        return list(shown.items())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"ControlSettings({shown})"


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one proxy process.

    Holds keys in plain text, because they are compared and sent; its ``repr`` shows none of them.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    reuse_port: bool = False
    """Several proxies of one machine may listen on the same port; the system spreads connections."""
    adapter: AdapterKind = "splice"
    """What reads clients' requests and writes their answers (``steersman_proxy.http``)."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 29000
    rl_enabled: bool = True
    """Off: a plain relay without version filter, stamps, hold and RL metrics."""
    buffered_answer_cap: int = 8 * MIB
    """A JSON answer up to this size is read to its end before its head is stamped and sent."""
    max_body_bytes: int = 512 * MIB
    api_keys: tuple[str, ...] = ()
    """Keys that clients may send; empty lets everybody in."""
    admin_key: str | None = None
    engine_keys: dict[str, str] = {}
    """By pool: the key that the proxy sends to that pool's engines."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of browsers, as they send them; ``("*",)`` is every origin."""
    defaults: PoolSettings = PoolSettings()
    """For every pool that ``pools`` does not name."""
    pools: dict[str, PoolSettings] = {}
    """By pool: ``defaults`` with the pool's own settings laid over them."""
    probe: ProbeSettings = ProbeSettings()
    passive: PassiveHealth = PassiveHealth()
    upstream_idle: float = 4.0
    """An idle connection to an engine is closed after this; below the engines' own 5 s."""
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    access_log: bool = True
    drain: float = 5.0
    """After SIGTERM ``/readyz`` fails for so long while requests are still accepted."""
    grace: float = 180.0
    """From SIGTERM until whatever still runs is cut; includes ``drain``."""
    table_file: str | None = None
    table_poll: float = 0.2
    control: ControlSettings | None = None
    """The operator to follow; the other source of tables than ``table_file``."""
    rid_header: dict[str, str] = {}
    """By pool: the header in which this proxy gives requests an id of its own, for aborts."""

    def pool(self, name: str) -> PoolSettings:
        """The settings of the pool ``name``, whether or not the file names it."""
        return self.pools.get(name, self.defaults)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"ProxySettings({shown})"

    # Not only for rich: msgspec gives every struct one, which would show the keys.
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["api_keys"] = f"<{len(self.api_keys)} keys>"
        shown["admin_key"] = "<set>" if self.admin_key else None
        shown["engine_keys"] = dict.fromkeys(self.engine_keys, "<set>")
        return list(shown.items())
