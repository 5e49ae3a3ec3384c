"""Counters and histograms that cost a request an addition each, read when a scrape comes.

The library's own take a lock and five to ten calls for an increment, for threads that are not here:
requests, changes of the fleet and scrapes all run on the proxy's one event loop, and nothing below
awaits. So a series is an object with plain attributes, whoever counts holds on to it and adds to it,
and no scrape sees half an observation. Touch neither from another thread.

The text of a scrape is what the library's ``Counter`` and ``Histogram`` make of the same events.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
"""The values of a series' labels, in the order of its family's names."""


class CounterSeries:
    """One series of a counter; ``value`` is added to directly and never goes down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class HistogramSeries:
    """One series of a histogram."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """Upper bounds of the buckets, each within its bucket; without the last, infinity."""
        self.counts = [0] * (len(bounds) + 1)
        """Observations of each bucket alone, not of all below it as in the exposition."""
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        """Count an observation, which must be a number."""
        self.counts[bisect_left(self.bounds, amount)] += 1
        self.sum += amount


S = TypeVar("S")


class _Family(Collector, Generic[S]):
    """A metric and its series, by their labels; one without labels has its only series at once."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, new: Callable[[], S]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._new = new
        self._series: dict[Labels, S] = {}
        if not self._labels:
            self.series()

    def series(self, *labels: str) -> S:
        """The series of these values of the labels; a new one is part of every scrape from now on."""
        series = self._series.get(labels)
        if series is None:
            if len(labels) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {labels}")
            series = self._series[labels] = self._new()
        return series

    def keep(self, wanted: Callable[[Labels], bool]) -> None:
        """Take out every series whose labels are not wanted; it counts from zero if it comes back."""
        self._series = {labels: s for labels, s in self._series.items() if wanted(labels)}

    @abstractmethod
    def _empty(self) -> Metric:
        """The family without series."""

    def describe(self) -> list[Metric]:
        """For the registry, which refuses two families of one name."""
        return [self._empty()]


class CounterFamily(_Family[CounterSeries]):
    """A counter; ``name`` is without ``_total``."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels, new=CounterSeries)

    def _empty(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The counter as it stands."""
        family = self._empty()
        for labels, series in self._series.items():
            family.add_metric(labels, series.value)
        yield family


class HistogramFamily(_Family[HistogramSeries]):
    """A histogram; ``buckets`` are finite upper bounds, rising."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, buckets: tuple[float, ...]
    ) -> None:
        bounds = (*buckets, float("inf"))
        self._names = [floatToGoString(bound) for bound in bounds]  # type: ignore[no-untyped-call]
        super().__init__(name, text, labels, new=lambda: HistogramSeries(buckets))

    def _empty(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The histogram as it stands."""
        family = self._empty()
        for labels, series in self._series.items():
            buckets = list(zip(self._names, accumulate(series.counts), strict=True))
            family.add_metric(labels, buckets, series.sum)
        yield family

    def counter(self, name: str, text: str) -> Collector:
        """A counter of the same events with the same labels, which then are counted only once."""
        return _Observations(self, name=name, text=text)

    def totals(self) -> Iterator[tuple[Labels, int]]:
        """How many observations each series has."""
        for labels, series in self._series.items():
            yield labels, sum(series.counts)

    @property
    def labels(self) -> Labels:
        """The names of the labels."""
        return self._labels


class _Observations(Collector):
    """See :meth:`HistogramFamily.counter`."""

    def __init__(self, histogram: HistogramFamily, *, name: str, text: str) -> None:
        self._histogram = histogram
        self._name = name
        self._text = text

    def _empty(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._histogram.labels)

    def describe(self) -> list[Metric]:
        """For the registry, which refuses two families of one name."""
        return [self._empty()]

    def collect(self) -> Iterator[Metric]:
        """The counter as it stands."""
        family = self._empty()
        for labels, count in self._histogram.totals():
            family.add_metric(labels, count)
        yield family
