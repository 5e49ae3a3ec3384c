"""One request on its way through the engine, and the table of routes that it is looked up in."""

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from steersman_sim.engine.faults import Fault
from steersman_sim.engine.journal import Entry

if TYPE_CHECKING:
    from steersman_sim.engine.core import EngineCore

T = TypeVar("T")


class Access(enum.Enum):
    """Who may call a route."""

    OPEN = enum.auto()
    KEY = enum.auto()
    """Needs the data key when one is set (SGLang NORMAL, vLLM guarded prefixes)."""
    ADMIN = enum.auto()
    """SGLang ADMIN_OPTIONAL: needs the admin key when one is set, else the data key."""


class Call:
    """A request with its body, its journal entry and the core that serves it."""

    __slots__ = ("body", "core", "entry", "fault", "request", "reset")

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        core: "EngineCore",
        entry: Entry,
        body: bytes,
        fault: Fault | None,
        reset: Callable[[], None],
    ) -> None:
        self.request = request
        self.core = core
        self.entry = entry
        self.body = body
        self.fault = fault
        self.reset = reset
        """Resets the connection of this request."""

    def json(self, kind: type[T]) -> T:
        """The body as a struct.

        Raises:
            msgspec.DecodeError: it is no JSON.
            msgspec.ValidationError: it is JSON of another shape.
        """
        return msgspec.json.decode(self.body, type=kind)

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; an absent body is an empty one.

        Raises:
            msgspec.DecodeError: it is no JSON.
            msgspec.ValidationError: it is JSON, but no object.
        """
        return msgspec.json.decode(self.body, type=dict[str, Any]) if self.body else {}

    def query(self, name: str, default: str = "") -> str:
        """One query parameter."""
        return self.request.query.get(name, default)

    def header(self, name: str) -> str | None:
        """One header."""
        return self.request.headers.get(name)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Route:
    """What serves a path."""

    __slots__ = ("access", "control", "handler")

    def __init__(self, handler: Handler, *, access: Access, control: bool) -> None:
        self.handler = handler
        self.access = access
        self.control = control
        """Whether it runs to its end even when the client goes away, as the control handlers of
        both engines do; a request for tokens is aborted instead."""


class Routes:
    """Routes by path and method. A path that ends in ``/*`` takes one more segment or more."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._under: list[tuple[str, dict[str, Route]]] = []

    def add(
        self,
        methods: str,
        paths: str,
        handler: Handler,
        *,
        access: Access = Access.KEY,
        control: bool = False,
    ) -> None:
        """Serve each of the space-separated ``paths`` with each of the ``methods``."""
        route = Route(handler, access=access, control=control)
        for path in paths.split():
            if path.endswith("/*"):
                table: dict[str, Route] = {}
                self._under.append((path[:-1], table))
            else:
                table = self._exact.setdefault(path, {})
            for method in methods.split():
                table[method] = route

    def find(self, path: str, method: str) -> Route | list[str] | None:
        """The route; or the methods that the path does take; or ``None`` for an unknown path."""
        table = self._exact.get(path)
        if table is None:
            for prefix, candidate in self._under:
                if path.startswith(prefix) and len(path) > len(prefix):
                    table = candidate
                    break
            else:
                return None
        route = table.get(method)
        return sorted(table) if route is None else route
