"""The configuration of the proxies of a standalone fleet, where the user gives none."""

import json
import os

from steersman_operator.manifests import ManifestDirectory
from steersman_operator.standalone.layout import Layout

_TEXT = """\
# Made by `steersman up` at each start; `--proxy-config FILE` uses a file of your own instead.
# Nothing balances over these proxies but the system, which knows at once that one has gone.
shutdown: {drain: 0, grace: 30s}
logging: {access: false}
"""


class _NoLedger:
    """Generations are the operator's; here nothing is kept."""

    def generation(self, resource: str, digest: str) -> int:
        """Whatever the resource."""
        return 0

    def created(self, resource: str) -> float:
        """Whatever the resource."""
        return 0.0


def key_files(layout: Layout) -> dict[str, str]:
    """The files of the data keys of all pools, by pool, as the manifests have them now.

    A proxy reads its keys when it starts; other files take effect with the next one.
    """
    directory = ManifestDirectory(layout.directory, ledger=_NoLedger())
    directory.poll()
    return {
        engine.name: engine.data_key_file
        for engine in directory.manifests.engines
        if engine.data_key_file is not None
    }


def write_proxy_config(layout: Layout) -> None:
    """Write it, with the keys that the engines of the manifests ask for."""
    text = _TEXT
    files = key_files(layout)
    if files:
        # JSON is YAML, whatever a name consists of.
        pools = {pool: {"engineAuth": {"apiKeyFile": file}} for pool, file in sorted(files.items())}
        text += f"pools: {json.dumps(pools)}\n"
    draft = layout.proxy_config.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(layout.proxy_config)
