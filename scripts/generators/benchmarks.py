"""The tables of ``docs/benchmarks.md`` and of the README, from ``docs/benchmarks/proxies.json``."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.bench.proxies import features, report

FIGURES = Path(__file__).parents[2] / "docs" / "benchmarks" / "proxies.json"


def pages() -> Mapping[str, str]:
    """None of its own."""
    return {}


def inserts() -> Mapping[str, Mapping[str, str]]:
    """The parts of both pages that have figures."""
    document = json.loads(FIGURES.read_text())
    table = report.main_table(document)
    settings = ["| Proxy | Version | Settings |", "|---|---|---|"]
    settings += [
        f"| {proxy['name']} | {proxy.get('version', 'not installed')} | {proxy['settings']} |"
        for proxy in document["proxies"]
    ]
    return {
        "README.md": {"proxies-table": table},
        "docs/benchmarks.md": {
            "proxies-table": table,
            "proxies-provenance": report.provenance(document),
            "proxies-targets": report.target_table(document),
            "proxies-features": features.table(document["trials"]),
            "proxies-settings": "\n".join(settings),
        },
    }
