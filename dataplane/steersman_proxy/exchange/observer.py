"""What an exchange tells the rest of the process: metrics, logs and health."""

from collections.abc import Mapping
from typing import Protocol

from steersman_proxy.exchange.messages import ExchangeRecord, Failure
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.engines import Engine


class Served(Protocol):
    """A request that had the usual answer."""

    def record(self, now: float) -> ExchangeRecord:
        """What is known of it; ``now`` is its end on the clock."""
        ...


class Observer(Protocol):
    """Takes note; must neither block nor raise."""

    def selected(self, engine: Engine, filtered: Mapping[Reason, int]) -> None:
        """An engine was chosen; ``filtered`` counts the engines that were out, by reason."""
        ...

    def unroutable(self, filtered: Mapping[Reason, int]) -> None:
        """Nobody could be chosen although the pool has engines."""
        ...

    def first_byte(self, engine: Engine, seconds: float) -> None:
        """The first byte of a streamed answer came so long after the request."""
        ...

    def attempt_failed(self, engine: Engine, failure: Failure) -> None:
        """An attempt at an engine failed, whether or not another one follows."""
        ...

    def finished(self, record: ExchangeRecord) -> None:
        """An exchange is over."""
        ...

    def served(
        self, request: Served, now: float, *, route: str, model: str | None, duration: float
    ) -> None:
        """A request is over whose answer was the usual one: status 200, whole, without any news.

        As :meth:`finished` of ``request.record(now)``, for those who need no more than the
        route's template, the listed model and the seconds that it took.
        """
        ...


class HealthSink(Protocol):
    """Learns from the traffic which engines can be reached."""

    def connect_failed(self, engine: Engine) -> None:
        """No connection to the engine came about."""
        ...

    def reached(self, engine: Engine) -> None:
        """The engine sent the head of an answer, or a part of its body."""
        ...
