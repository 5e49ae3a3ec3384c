"""What ``steersman up`` prints where there is no terminal: a line for each thing that happens."""

from types import TracebackType
from typing import Any, Protocol, Self

from steersman_operator.standalone.settings import UpSettings


class View(Protocol):
    """Shows a fleet."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        ...

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def show(self, status: dict[str, Any], settings: UpSettings) -> None:
        """This is how things are now."""
        ...


class PlainView:
    """Says what has changed since the status before."""

    def __init__(self) -> None:
        self._serving = False
        self._told_empty = False
        self._wrong: set[str] = set()
        self._engines: dict[str, str] = {}
        self._pools: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to clean up."""

    def say(self, text: str) -> None:
        """One line."""
        print(text, flush=True)

    def show(self, status: dict[str, Any], settings: UpSettings) -> None:
        """The lines for everything that is new."""
        wrong = [f"error: {sentence}" for sentence in status["errors"]]
        wrong += [f"warning: {sentence}" for sentence in status["warnings"]]
        for sentence in wrong:
            if sentence not in self._wrong:
                self.say(sentence)
        self._wrong = set(wrong)
        for pool in status["pools"]:
            for engine in pool["engines"]:
                if engine["phase"] == "Unknown":
                    continue  # nobody has looked yet, and somebody will at once
                self._change(self._engines, f"{pool['name']}/{engine['name']}", sentence_of(engine))
            self._change(self._pools, pool["name"], summary_of(pool))
        for name in [*self._pools]:
            if name not in {pool["name"] for pool in status["pools"]}:
                del self._pools[name]
                self.say(f"{name}: not managed any more")
        if status["operator"]["published"] and not status["pools"] and not self._told_empty:
            self._told_empty = True
            self.say("there is no RolloutEngine yet; each *.yaml that has one is read as it comes")
        if not self._serving and is_serving(status, settings):
            self._serving = True
            proxies = settings.proxies
            self.say(
                f"serving on {settings.endpoint} with {proxies} "
                f"{'proxy' if proxies == 1 else 'proxies'}"
            )

    def _change(self, known: dict[str, str], name: str, text: str) -> None:
        if known.get(name) != text:
            known[name] = text
            self.say(f"{name}: {text}")


def sentence_of(engine: dict[str, Any]) -> str:
    """How an engine stands, in a few words."""
    text = f"{engine['control']}, {engine['gate']}"
    if engine["version"] is not None:
        text += f", version {engine['version']}"
    if engine["phase"] != "Settled":
        text += f", {engine['phase']}"
    if engine["desired"] != engine["control"]:
        text += f", to become {engine['desired']}"
    # What is waited for changes too often for lines; trouble does not, nor does the first table.
    if engine["phase"] == "Pending" or engine["problem"] != engine["waiting"]:
        text += f": {engine['problem']}" if engine["problem"] else ""
    return f"{text}, {engine['withheld']}" if engine["withheld"] else text


def metrics_of(settings: UpSettings) -> str:
    """Where all metrics are, in one line."""
    first, *rest = settings.metrics_ports
    proxies = settings.metrics_url(first)
    if rest and settings.metrics_ports == tuple(range(first, first + len(rest) + 1)):
        proxies += f" to {rest[-1]}"
    else:
        proxies = ", ".join([proxies, *map(str, rest)])
    operator = settings.metrics_url(settings.operator_metrics_port)
    return f"metrics: operator {operator}, {'proxies' if rest else 'proxy'} {proxies}"


def summary_of(pool: dict[str, Any]) -> str:
    """How a pool stands, in a few words."""
    counts = pool["counts"]
    text = f"{pool['state']}, {counts['ready']}/{counts['total']} engines ready"
    if pool["fleet_max"] is not None:
        text += f", newest version {pool['fleet_max']}"
    synced, total = pool["weights"]["synced"], pool["weights"]["total"]
    if synced < total:
        paused = ", paused" if pool["rollout_paused"] else ""
        text += f", {synced} of {total} have {pool['target']['version']}{paused}"
    return text


def is_serving(status: dict[str, Any], settings: UpSettings) -> bool:
    """Whether every proxy has a table of this operator, and there is something to serve."""
    acked = [proxy for proxy in status["proxies"] if proxy["connected"] and proxy["acked"]]
    there = bool(status["operator"]["published"] and status["pools"])
    return there and len(acked) >= settings.proxies
