"""The status of a small fleet, and the errors of the API."""

import aiohttp

from tests.api.support import engine, fleet, pool

STATUS = fleet(pool("qwen", engine()))


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str, str]:
    content = await answer.json()
    assert answer.content_type == "application/json"
    return answer.status, content["error"]["code"], content["error"]["message"]
