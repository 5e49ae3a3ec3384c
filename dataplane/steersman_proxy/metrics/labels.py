"""Labels that cannot grow without bound."""

from steersman_proxy.exchange.messages import ExchangeRecord, Outcome
from steersman_proxy.exchange.routes import ROUTES, UNKNOWN

MAX_MODELS = 100
"""Names of models that get series of their own in the life of a process."""

NO_MODEL = "unknown"
OTHER = "other"

_TEMPLATES = frozenset(route.path for route in (*ROUTES, UNKNOWN))


class ModelLabels:
    """Maps listed model names to labels; after ``MAX_MODELS`` different ones it says ``other``.

    The names come from the table, so that a client cannot make one up. The bound is for tables that
    rename their models for ever: each name keeps some sixty series until the process ends.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of(self, model: str | None) -> str:
        """The label of a pool's listed model name."""
        if model is None:
            return NO_MODEL
        if model not in self._seen:
            if len(self._seen) >= MAX_MODELS:
                return OTHER
            self._seen.add(model)
        return model


def endpoint_label(route: str) -> str:
    """The label of a route's template; ``other`` for a text that is not one of ours."""
    return route if route in _TEMPLATES else OTHER


def error_label(record: ExchangeRecord) -> str | None:
    """What went wrong with a request, from a fixed list; ``None`` if nothing did.

    The codes of :mod:`steersman.errors`; ``engine_4xx`` and ``engine_5xx`` for an engine's own
    errors, which are passed on but are no successes; ``router_4xx`` and ``router_5xx`` for those of
    the proxy's own routes; ``incomplete`` for an answer cut off.
    """
    if record.outcome is Outcome.CLIENT_GONE:
        return "client_gone"
    if record.error is not None:
        return record.error.code
    if record.outcome is Outcome.UPSTREAM_FAILED:
        return "incomplete"
    if record.status is not None and record.status >= 400:
        source = "router" if record.engine_id is None else "engine"
        return f"{source}_5xx" if record.status >= 500 else f"{source}_4xx"
    return None
