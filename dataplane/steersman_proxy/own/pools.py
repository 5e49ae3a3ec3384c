"""Which pools one of our own routes is about, and what its query says."""

from urllib.parse import parse_qsl, unquote_plus

from steersman.errors import ModelNotFound, NoTable
from steersman_proxy.exchange.messages import RequestHead
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.view import PoolView, RoutingView


def view_of(fleet: Fleet) -> RoutingView:
    """The view in force.

    :raises NoTable: if there is none yet.
    """
    if fleet.view is None:
        raise NoTable("this proxy has no fleet table yet")
    return fleet.view


def query_value(head: RequestHead, name: str) -> str | None:
    """The first value of a member of the query, decoded."""
    query = head.target.partition("?")[2]
    return next((v for n, v in parse_qsl(query, keep_blank_values=True) if n == name), None)


def query_without(head: RequestHead, *names: str) -> str:
    """The query as it came, without some members; begins with ``?`` unless nothing is left."""
    query = head.target.partition("?")[2]
    kept = [
        pair
        for pair in query.split("&")
        if pair and unquote_plus(pair.partition("=")[0]) not in names
    ]
    return "?" + "&".join(kept) if kept else ""


def named_pool(view: RoutingView, *, pool: str | None, model: str | None) -> PoolView | None:
    """The pool that is named by its own name, else by its model; ``None`` if neither is given.

    :raises ModelNotFound: if there is no such pool or model.
    """
    if pool:
        found = view.pools.get(pool)
        if found is None:
            raise ModelNotFound(f"there is no pool {pool[:128]!a} here")
        return found
    return view.pool_of_model(model) if model else None


def one_pool(view: RoutingView, *, pool: str | None, model: str | None) -> PoolView:
    """Like :func:`named_pool`; if none is named, the only or the default pool.

    :raises ModelRequired: if several pools could be meant.
    """
    return named_pool(view, pool=pool, model=model) or view.pool_of_model(None)
