"""What ``steersman up`` was told."""

import msgspec


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One standalone fleet."""

    proxies: int = 1
    host: str = "127.0.0.1"
    port: int = 30000
    """Where clients send their requests; all proxies share it."""
    metrics_host: str = "127.0.0.1"
    metrics_ports: tuple[int, ...] = (29000,)
    """Of the proxies, one each."""
    operator_metrics_port: int = 28000
    proxy_config: str | None = None
    record: str | None = None

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host  # noqa: S104
        return f"http://{_bracketed(host)}:{self.port}"

    def metrics_url(self, port: int) -> str:
        """A metrics port as a URL."""
        return f"http://{_bracketed(self.metrics_host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
