"""The configuration of the proxies of a standalone fleet, where the user gives none."""

import json
import os

from steersman_operator.standalone.layout import Layout

_TEXT = """\
# Made by `steersman up` at each start; `--proxy-config FILE` uses a file of your own instead.
# Nothing balances over these proxies but the system, which knows at once that one has gone.
shutdown: {drain: 0, grace: 30s}
logging: {access: false}
"""


def write_proxy_config(layout: Layout, *, key_files: dict[str, str] | None = None) -> None:
    """Write it. ``key_files`` are the files of the keys towards engines, by pool."""
    text = _TEXT
    if key_files:
        # JSON is YAML, whatever a name consists of.
        pools = {
            pool: {"engineAuth": {"apiKeyFile": file}} for pool, file in sorted(key_files.items())
        }
        text += f"pools: {json.dumps(pools)}\n"
    draft = layout.proxy_config.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(layout.proxy_config)
