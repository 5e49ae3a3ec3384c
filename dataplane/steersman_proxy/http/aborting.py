"""Telling engines of requests that nobody waits for any more."""

from steersman_proxy.http.tasks import TaskSet
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.engines import Engine


class Aborts:
    """Runs one abort for each abandoned request. Nobody waits for an engine's answer to it: the
    closed connection has told it already.
    """

    def __init__(self, own: OwnRoutes, *, tasks: TaskSet) -> None:
        self._own = own
        self._tasks = tasks

    def tell(self, engine: Engine, rid: str) -> None:
        """Ask the engine to end the request that it knows by ``rid``."""
        self._tasks.start(self._own.abort_one(engine, rid))
