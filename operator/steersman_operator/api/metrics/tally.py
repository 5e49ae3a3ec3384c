"""Counts by labels, made into a family when a scrape comes.

Cheaper to add to than the library's counters, which take a lock that nobody here contends for; and
the series of a pool that is gone are taken out by leaving out its keys.
"""

from collections.abc import Collection, Iterable

from prometheus_client.metrics_core import CounterMetricFamily

PREFIX = "steersman_operator_"


class Tally:
    """One counter. ``name`` is without the prefix and without ``_total``."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = PREFIX + name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, by: int = 1) -> None:
        """Count."""
        self._counts[labels] = self._counts.get(labels, 0) + by

    def keep(self, pools: Collection[str]) -> None:
        """Forget the pools that are not among these; the pool is the first label."""
        for labels in [labels for labels in self._counts if labels[0] not in pools]:
            del self._counts[labels]

    def family(self, zeros: Iterable[tuple[str, ...]] = ()) -> CounterMetricFamily:
        """The counter as it stands.

        ``zeros`` are series that are there from the beginning: of one that appears with its first
        event, ``increase()`` does not see that event.
        """
        counts = dict.fromkeys(zeros, 0) | self._counts
        family = CounterMetricFamily(self.name, self._text, labels=self._labels)
        for labels, count in counts.items():
            family.add_metric(labels, count)
        return family
