"""The two files that steer the proxy: its configuration, and the table, edited as the run goes on."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

MODEL = "sim-model"
POOL = "rollout"

Gate = Literal["open", "closed"]
Control = Literal["active", "paused", "asleep"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the table."""

    id: str
    url: str
    version: str
    gate: Gate = "open"
    control: Control = "active"


class TableFile:
    """The table of the run. Each edit replaces the file by renaming a whole new one over it."""

    def __init__(self, path: Path, *, rows: Mapping[str, Row]) -> None:
        self.path = path
        self.rows = dict(rows)
        self._replace()

    def edit(
        self,
        engine: str,
        *,
        gate: Gate | None = None,
        control: Control | None = None,
        version: str | None = None,
    ) -> Row:
        """Change one row and put the new table into its place."""
        row = self.rows[engine]
        self.rows[engine] = changed = Row(
            id=row.id,
            url=row.url,
            version=version or row.version,
            gate=gate or row.gate,
            control=control or row.control,
        )
        self._replace()
        return changed

    def _replace(self) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(render_table(self.rows.values()), encoding="utf-8")
        fresh.replace(self.path)


def render_table(rows: Iterable[Row]) -> str:
    """The table as YAML."""
    entries = "".join(
        f"""\
      - id: {row.id}
        url: {row.url}
        runtime: sglang
        gate: {row.gate}
        control: {row.control}
        weightVersion: "{row.version}"
"""
        for row in rows
    )
    return f"""\
pools:
  - name: {POOL}
    model: {MODEL}
    engines:
{entries}"""


def render_config(*, port: int, metrics_port: int) -> str:
    """The configuration of the proxy as YAML."""
    return f"""\
listen: {{port: {port}}}
metrics: {{port: {metrics_port}}}
routing:
  policy: power_of_two
  # A request of a session waits for its own engine while that is being changed.
  stickyPause: true
table: {{poll: 50ms}}
logging: {{access: false}}
shutdown: {{drain: 0, grace: 2s}}
"""
