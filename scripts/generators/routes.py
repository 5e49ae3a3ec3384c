"""``docs/routes.md``: every path that the proxy serves, from the table that it routes by."""

from collections.abc import Mapping

from steersman_proxy.exchange.routes import ROUTES, Access, Kind, Route

INTRODUCTION = """
# Routes of the proxy

There is no catch-all: a path that is not listed is answered with 404 `unknown_url`, and a path that
the proxy owns never reaches an engine by accident. Paths are compared as they came, not decoded.

The metrics port serves `/livez`, `/readyz`, `/metrics`, `/status` and `/explain`; see
[operations.md](operations.md).
"""

KEYS = {
    Access.OPEN: "none",
    Access.DATA: "data",
    Access.ADMIN: "admin",
}

KEY_NOTE = """
**Key.** `data`: one of `auth.apiKeys`, if any are configured. `admin`: `auth.adminKey`; where none
is configured, a data key. `none`: probes of Kubernetes carry no key.

**Stamp.** *engine*: the engine's own report wins, in buffered JSON answers up to
`rl.bufferedAnswerCap`, and `x-smg-mixed-version` is exact. *stream*: changes seen in the stream
correct the table. *told*: they are also told to the client in an SSE comment. Every answer of an
engine carries `x-smg-routed-worker-id`, and `x-smg-weight-version` once the engine has a version.
"""


def _stamp(route: Route) -> str:
    parts = []
    if route.reports_version:
        parts.append("engine")
    if route.narrates:
        parts.append("stream, told")
    elif route.reports_in_stream:
        parts.append("stream")
    return ", ".join(parts) or "table"


def _table(kind: Kind) -> str:
    lines = ["| Path | Methods | Key | Stamp |", "|---|---|---|---|"]
    for route in ROUTES:
        if route.kind is kind:
            path = f"{route.path}{{id}}" if route.prefix else route.path
            stamp = _stamp(route) if kind is Kind.DATA else "-"
            methods = ", ".join(route.methods)
            lines.append(f"| `{path}` | {methods} | {KEYS[route.access]} | {stamp} |")
    return "\n".join(lines)


def pages() -> Mapping[str, str]:
    """The page."""
    text = (
        f"{INTRODUCTION}\n## Passed on to one engine\n\n{_table(Kind.DATA)}\n\n"
        f"## Answered by the proxy\n\nSome ask one or all engines of a pool first. Their bodies may have "
        f"up to 1 MiB.\n\n"
        f"{_table(Kind.OWN)}\n{KEY_NOTE}"
    )
    return {"routes.md": text}
