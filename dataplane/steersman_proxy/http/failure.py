"""How an attempt at an engine is reported to have failed."""

from steersman_proxy.exchange.messages import Failure


class AttemptFailed(Exception):
    """A request did not get its whole answer from an engine. ``str()`` says what happened.

    ``failure.unsent`` is true only if the engine surely did not take the request in any attempt, so
    that another engine may get it.
    """

    def __init__(self, failure: Failure, detail: str, *, discarded: bool = False) -> None:
        self.failure = failure
        self.detail = detail
        self.discarded = discarded
        """Whether the engine's kernel threw the request away: it answered with a reset."""
        super().__init__(detail)

    @property
    def unsent(self) -> bool:
        """Whether the request surely was not accepted."""
        return self.failure.unsent
