"""What all of the vLLM dialect stands on: how its routes are read and called."""

from typing import Any

from steersman.clock import Deadline
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import EngineClient, NoAnswer
from steersman_operator.engines.dialect import CallResult, refused, unanswered, verdict
from steersman_operator.engines.exposition import Samples, parse
from steersman_operator.engines.memory import Memory

NO_DEV_MODE = "the engine has no control routes; start vLLM with VLLM_SERVER_DEV_MODE=1"


class VllmRoutes:
    """The routes of one vLLM engine."""

    def __init__(self, client: EngineClient, memory: Memory | None = None) -> None:
        """``memory`` is shared by all that speak to this engine."""
        self._client = client
        self._memory = memory or Memory()

    async def _flag(self, path: str, *, deadline: Deadline) -> bool | None:
        """The one boolean of an answer; ``None`` also if data-parallel engines disagree (500)."""
        return flag_of(path.removeprefix("/"), await self._get(path, deadline=deadline))

    async def _fields(self, path: str, *, deadline: Deadline) -> dict[str, Any]:
        return fields_of(await self._get(path, deadline=deadline))

    async def _samples(self, *, deadline: Deadline) -> Samples:
        return samples_of(await self._get("/metrics", deadline=deadline))

    async def _get(self, path: str, *, deadline: Deadline) -> Reply | None:
        return (await self._client.ask((path,), deadline=deadline)).replies[0]

    async def _call(
        self,
        path: str,
        query: dict[str, str],
        *,
        body: dict[str, Any] | None = None,
        deadline: Deadline,
    ) -> CallResult:
        try:
            reply = await self._client.post(path, query=query, body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        return with_dev_mode(verdict(reply, what=path, keys=self._client.keys))


def with_dev_mode(result: CallResult) -> CallResult:
    """A route that is missing is missing with all the others."""
    return refused(NO_DEV_MODE, http=404) if result.http == 404 else result


def fields_of(reply: Reply | None) -> dict[str, Any]:
    """The object in an answer; an empty one if there is none."""
    return reply.fields() if reply is not None and reply.ok else {}


def flag_of(name: str, reply: Reply | None) -> bool | None:
    """A boolean in an answer; ``None`` if there is none."""
    value = fields_of(reply).get(name)
    return value if isinstance(value, bool) else None


def samples_of(reply: Reply | None) -> Samples:
    """The metrics in an answer; none if there is none."""
    return parse(reply.text if reply is not None and reply.ok else "")
