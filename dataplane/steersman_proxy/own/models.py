"""``/v1/models``: the models of the table, as OpenAI's clients read them."""

from typing import Any
from urllib.parse import unquote

from steersman.errors import ModelNotFound
from steersman_proxy.own.answer import OwnAnswer, json_answer
from steersman_proxy.routing.view import PoolView, RoutingView

PREFIX = "/v1/models/"


def list_models(view: RoutingView, *, created: int) -> OwnAnswer:
    """One entry for each pool, under the name that it lists; ``created`` is in Unix seconds."""
    entries: dict[str, Any] = {}
    for pool in view.pools.values():
        for name in pool.row.models[:1]:
            entries.setdefault(name, _entry(pool, name=name, created=created))
    return json_answer({"object": "list", "data": list(entries.values())})


def retrieve_model(view: RoutingView, *, path: str, created: int) -> OwnAnswer:
    """The model named by the rest of a raw path; any name that clients may ask for is found.

    Names often have slashes, sent as they are or percent-encoded.

    :raises ModelNotFound: if no pool serves it.
    """
    name = unquote(path.removeprefix(PREFIX))
    for pool in view.pools.values():
        if name in pool.row.models:
            return json_answer(_entry(pool, name=name, created=created))
    raise ModelNotFound(f"the model {name[:256]!a} does not exist")


def _entry(pool: PoolView, *, name: str, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "steersman",
        "root": pool.row.models[0],
        "parent": None,
        "weight_version": pool.fleet_max,
    }
