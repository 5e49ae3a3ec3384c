"""What each proxy does beside passing requests on: the trials as a table, and what they tell of
themselves.

Nothing here is from hearsay. Trials are in the JSON of the run; the rest names where it is from:
``--help`` of the versions in :mod:`tests.bench.proxies.peers`, the manuals of nginx 1.22 and haproxy
2.6, and our own documentation. "none told" is: not in there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

NAMES = ("steersman", "nginx", "haproxy", "smg", "sglang-router", "vllm-router")

Trial = Mapping[str, Any]


def _yes(found: bool) -> str:
    return "yes" if found else "no"


def _leaving(trial: Trial) -> str:
    at_once = [word for word in ("wait", "stream") if trial[f"leaving_{word}"]]
    return {0: "no", 1: f"only {at_once[0] if at_once else ''}ing", 2: "yes"}[len(at_once)]


def _attempts(word: str) -> Callable[[Trial], str]:
    def cell(trial: Trial) -> str:
        return f"{trial[f'attempts_{word}']}, then {trial[f'status_{word}']}"

    return cell


TRIED: Sequence[tuple[str, Callable[[Trial], str]]] = (
    ("The body of a request is", lambda trial: str(trial["body"])),
    ("The answer names the engine", lambda trial: _yes(trial["names_engine"])),
    ("The answer names the version of the weights", lambda trial: _yes(trial["stamp"])),
    (
        "`x-smg-version-policy: min-version:…` keeps a request from older weights",
        lambda trial: _yes(trial["version_policy"]),
    ),
    ("An engine learns within 3 s that the client has left, waiting or reading", _leaving),
    ("Attempts at a request that engines answer with 500", _attempts("500")),
    ("… with 503", _attempts("503")),
    ("… by closing the connection, having read it", _attempts("broken")),
    ("Engines that do so 16 times in a row are left alone", lambda trial: _yes(trial["takes_out"])),
    ("Two different `Content-Length`s", lambda trial: str(trial["two_lengths"])),
)

TOLD: Sequence[tuple[str, Sequence[str]]] = (
    # In the order of NAMES.
    (
        "Limit of requests",
        (
            "per engine, others wait: `maxInFlightPerEngine`, `hold`",
            "`limit_conn`, `limit_req`",
            "`maxconn` per server, others wait",
            "`--max-concurrent-requests`, `--queue-size`",
            "`--max-concurrent-requests`, `--queue-size`",
            "`--max-concurrent-requests`, `--queue-size`",
        ),
    ),
    (
        "Waiting while engines are paused or refitted",
        ("yes: `hold`", "none told", "none told", "none told", "none told", "none told"),
    ),
    (
        "Tracing",
        (
            "no",
            "none told",
            "OpenTracing filter",
            "`--enable-trace`",
            "`--enable-trace`",
            "none told",
        ),
    ),
    (
        "Routing by what engines have cached",
        ("planned", "no", "no", "`cache_aware`", "`cache_aware`", "`cache_aware`, `kv_aware`"),
    ),
    (
        "Prefill and decode on different engines",
        (
            "planned",
            "no",
            "no",
            "`--pd-disaggregation`",
            "`--pd-disaggregation`",
            "`--vllm-pd-disaggregation`",
        ),
    ),
    (
        "Discovery in Kubernetes",
        (
            "planned",
            "none told",
            "none told",
            "`--service-discovery`",
            "`--service-discovery`",
            "`--service-discovery`",
        ),
    ),
    (
        "TLS towards clients",
        ("no", "yes", "yes", "`--tls-cert-path`", "`--tls-cert-path`", "none told"),
    ),
)


def table(trials: Mapping[str, Trial]) -> str:
    """Both as one table, a column for each proxy; Markdown. What was not tried is a dash."""
    lines = [f"| | {' | '.join(NAMES)} |", "|---" * (len(NAMES) + 1) + "|"]
    for title, cell in TRIED:
        cells = []
        for name in NAMES:
            trial = trials.get(name)
            cells.append("–" if trial is None or "failed" in trial else cell(trial))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += [f"| {title} | {' | '.join(cells)} |" for title, cells in TOLD]
    return "\n".join(lines)
