"""How long proxies take to acknowledge tables."""

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from steersman.table import Epoch
from steersman_operator.api.metrics.instruments import Instruments
from steersman_operator.api.metrics.tally import PREFIX
from steersman_operator.fleet.state import ProxyState, State

REMEMBERED = 4096
"""Tables whose moment is known. A proxy that is further behind is shown as behind these."""


class Acks:
    """When tables were published, and since when proxies are behind."""

    def __init__(self, instruments: Instruments) -> None:
        self._histogram = instruments.ack
        self._term = 0
        self._published: dict[int, float] = {}
        """By number within the term; the oldest first, without gaps."""
        self._joined: dict[str, float] = {}
        """When a proxy that has acknowledged nothing since said hello, by uid."""

    def published(self, epoch: Epoch, *, now: float) -> None:
        """A table goes out."""
        if epoch.term != self._term:
            self._term = epoch.term
            self._published.clear()
        self._published[epoch.seq] = now
        if len(self._published) > REMEMBERED:
            del self._published[next(iter(self._published))]

    def joined(self, uid: str, *, known: dict[str, ProxyState], now: float) -> None:
        """A proxy has said hello."""
        self._joined[uid] = now
        if len(self._joined) > len(known):
            self._joined = {one: at for one, at in self._joined.items() if one in known}

    def acked(self, before: ProxyState | None, after: ProxyState | None, *, now: float) -> None:
        """A proxy has acknowledged something, perhaps for the second time."""
        if after is None or after.acked is None or (before and before.acked == after.acked):
            return
        self._joined.pop(after.ref.uid, None)
        at = self._published.get(after.acked.seq)
        if at is not None and after.acked.term == self._term:
            self._histogram.observe(max(0.0, now - at))

    def metrics(self, state: State, *, now: float) -> Iterator[Metric]:
        """The proxies, and how far the last of them is behind."""
        proxies = list(state.proxies.values())
        for name, text, count in (
            (
                "required",
                "Proxies without whose acknowledgement no engine is touched.",
                len(proxies),
            ),
            (
                "connected",
                "Of the required proxies, those with a session.",
                sum(proxy.connected for proxy in proxies),
            ),
            (
                "acked",
                "Of the required proxies, those that have acknowledged the newest table.",
                sum(state.published and _follows(proxy, state) for proxy in proxies),
            ),
            (
                "disputed",
                "Of the required proxies, those of which hello and platform name different processes.",
                sum(proxy.disputed for proxy in proxies),
            ),
        ):
            gauge = GaugeMetricFamily(f"{PREFIX}proxies_{name}", text)
            gauge.add_metric((), count)
            yield gauge
        gauge = GaugeMetricFamily(
            PREFIX + "ack_lag_seconds",
            "For how long the newest tables wait for the proxy that is furthest behind; 0 if all have "
            "acknowledged the newest.",
        )
        lags = [self._lag(proxy, state, now=now) for proxy in proxies]
        gauge.add_metric((), max(lags, default=0.0))
        yield gauge

    def _lag(self, proxy: ProxyState, state: State, *, now: float) -> float:
        if not state.published or _follows(proxy, state) or not self._published:
            return 0.0
        oldest = next(iter(self._published.values()))
        if proxy.acked is None or proxy.disputed:
            return now - max(oldest, self._joined.get(proxy.ref.uid, proxy.met))
        return now - self._published.get(proxy.acked.seq + 1, oldest)


def _follows(proxy: ProxyState, state: State) -> bool:
    """Whether the newest table is in force there, as far as the barrier is concerned."""
    return not proxy.disputed and proxy.acked is not None and proxy.acked >= state.epoch
