"""The paths that the proxy serves. There is no catch-all: what is not here is 404.

Paths are compared as they came, not decoded, so that ``/generate%2f..`` is nobody's route.
"""

from enum import Enum

import msgspec


class Kind(Enum):
    """What becomes of a request."""

    DATA = "data"
    """One engine answers; its bytes are passed on."""
    OWN = "own"
    """The proxy answers, after asking engines if need be."""


class Access(Enum):
    """Which key opens the route."""

    OPEN = "open"
    """None: probes of Kubernetes carry no key."""
    DATA = "data"
    """One of the data-plane keys, if any are set."""
    ADMIN = "admin"
    """The admin key if one is set, else a data-plane key."""


class Route(msgspec.Struct, frozen=True):
    """One path."""

    path: str
    methods: tuple[str, ...]
    kind: Kind = Kind.DATA
    access: Access = Access.DATA
    reports_version: bool = False
    """Whether the JSON answers of some engine name the weights that made them, so that the answer
    is worth holding to its end."""
    reports_in_stream: bool = False
    """Whether the events of its streams name the weights too."""
    narrates: bool = False
    """Whether a change of version seen in a stream is told in an SSE comment."""
    prefix: bool = False
    """Whether the path stands for everything below it."""


_GENERATION = (
    Route(
        "/generate",
        ("POST", "PUT"),
        reports_version=True,
        reports_in_stream=True,
        narrates=True,
    ),
    Route("/v1/chat/completions", ("POST",), reports_version=True),
    Route("/v1/completions", ("POST",), reports_version=True),
    Route("/inference/v1/generate", ("POST",), reports_version=True, reports_in_stream=True),
    Route("/v1/responses", ("POST",), reports_version=True),
    Route("/v1/messages", ("POST",), reports_version=True),
)

_FORWARDED = tuple(
    Route(path, ("POST", "PUT") if path in ("/encode", "/classify", "/v1/rerank") else ("POST",))
    for path in (
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v1/classify",
        "/classify",
        "/encode",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/v1/detokenize",
    )
)

_GET = ("GET", "HEAD")

_OWN = (
    Route("/v1/models", _GET, kind=Kind.OWN),
    Route("/v1/models/", _GET, kind=Kind.OWN, prefix=True),
    Route("/model_info", _GET, kind=Kind.OWN),
    Route("/get_model_info", _GET, kind=Kind.OWN),
    Route("/server_info", _GET, kind=Kind.OWN),
    Route("/get_server_info", _GET, kind=Kind.OWN),
    Route("/v1/loads", _GET, kind=Kind.OWN),
    Route("/get_loads", _GET, kind=Kind.OWN),
    Route("/abort_request", ("POST",), kind=Kind.OWN),
    Route("/abort_requests", ("POST",), kind=Kind.OWN),
    Route("/flush_cache", ("GET", "POST"), kind=Kind.OWN, access=Access.ADMIN),
    Route("/health", _GET, kind=Kind.OWN, access=Access.OPEN),
    Route("/health_generate", _GET, kind=Kind.OWN, access=Access.OPEN),
    Route("/liveness", _GET, kind=Kind.OWN, access=Access.OPEN),
    Route("/readiness", _GET, kind=Kind.OWN, access=Access.OPEN),
)

ROUTES: tuple[Route, ...] = (*_GENERATION, *_FORWARDED, *_OWN)

_EXACT = {route.path: route for route in ROUTES if not route.prefix}
_PREFIXES = tuple(route for route in ROUTES if route.prefix)

UNKNOWN = Route("unknown", (), kind=Kind.OWN)
"""Stands for every path that is not served, so that a label cannot be chosen by clients."""


def find_route(path: str) -> Route | None:
    """The route of a raw path without its query, or ``None``."""
    route = _EXACT.get(path)
    if route is not None:
        return route
    return next(
        (
            route
            for route in _PREFIXES
            if path.startswith(route.path) and len(path) > len(route.path)
        ),
        None,
    )
