"""``/v1/models`` as OpenAI's client reads it."""

import openai
import pytest

from tests.observation.support import fleet_of, new_fleet, pool_row, row
from tests.own.support import code_of, json_of, own_routes, own_server

POOLS = (
    pool_row("main", "org/model-7b", "alias"),
    pool_row("second", "other", fleet_max=None),
    pool_row("nameless", fleet_max=None),
)


def fleet():
    pools = [*POOLS[:2], type(POOLS[2])(name="nameless")]
    return fleet_of(row("e1"), pools=pools)


async def test_openai_lists_and_retrieves_models():
    async with own_routes(fleet()) as own, own_server(own) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
        async with client:
            page = await client.models.list()
            assert [model.id for model in page.data] == ["org/model-7b", "other"]
            assert page.data[0].owned_by == "steersman"
            assert page.data[0].created > 1_700_000_000
            found = await client.models.retrieve("org/model-7b")
            assert found.id == "org/model-7b"
            with pytest.raises(openai.NotFoundError) as missing:
                await client.models.retrieve("nobody/serves-this")
            assert missing.value.code == "model_not_found"


async def test_versions_are_the_pools_newest():
    async with own_routes(fleet()) as own:
        first, second = json_of(await own("/v1/models"))["data"]
    assert first["weight_version"] == "7"
    assert first["root"] == "org/model-7b"
    assert first["parent"] is None
    assert second["weight_version"] is None


@pytest.mark.parametrize("path", ["org/model-7b", "org%2Fmodel-7b", "org%2fmodel%2D7b", "alias"])
async def test_a_name_is_found_in_every_spelling(path):
    async with own_routes(fleet()) as own:
        entry = json_of(await own(f"/v1/models/{path}?x=1"))
    assert entry["object"] == "model"
    assert entry["root"] == "org/model-7b"


async def test_unknown_names_are_404_and_do_not_break_the_message():
    async with own_routes(fleet()) as own:
        assert code_of(await own("/v1/models/%0d%0anope")) == (404, "model_not_found")
        assert code_of(await own("/v1/models/" + "x" * 5000)) == (404, "model_not_found")
        assert code_of(await own("/v1/models/%ff%00")) == (404, "model_not_found")


async def test_without_a_table_there_is_nothing_to_list():
    async with own_routes(new_fleet()) as own:
        assert code_of(await own("/v1/models")) == (503, "no_table")
