"""One boot of a vLLM 0.32 engine: what sleeps, and which weight update is under way."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call, Route
from steersman_sim.engine.config import EngineConfig
from steersman_sim.engine.core import EngineCore, no_gate
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import json_reply, vllm_error
from steersman_sim.engine.scheduler import Hold
from steersman_sim.engine.sequence import Sequence
from steersman_sim.engine.sglang.core import bearer_is

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Path prefixes that the API key protects. Everything else is open, control routes included."""


class RanksDisagree(Exception):
    """The data-parallel engines gave different answers; vLLM 0.32 makes it a 500."""


class VllmCore(EngineCore):
    """The state of vLLM's engine beyond that of its schedulers. Requests meet no gate: they queue
    in the scheduler while it is paused.
    """

    def __init__(self, config: EngineConfig, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.asleep: set[str] = set()
        """What is out of memory now: ``weights``, ``kv_cache``."""
        self.sleep_level: int | None = None
        """What the metric of the sleep state shows: the level of the last sleep (0 also after
        ``/release_kv_cache_memory``) until everything is awake; a ``/resume`` does not change it."""
        self.pausing = 0
        """Pauses that were asked for and are not complete."""
        self.transfer_ready = config.weight_transfer == "ipc"
        """Whether the weight transfer engine can receive; nccl has to be initialized first."""
        self.updating = False
        """Between ``/start_weight_update`` and ``/finish_weight_update``."""

    def authorize(self, call: Call, route: Route) -> web.Response | None:
        """The API key guards a few prefixes alone."""
        key = self.config.api_key
        if key is None or not call.entry.path.startswith(_GUARDED) or bearer_is(call, key):
            return None
        return json_reply({"error": "Unauthorized"}, status=401)

    def invalid(self, message: str) -> web.Response:
        """A body that does not validate."""
        return vllm_error(message)

    def failed(self, error: Exception) -> web.Response:
        """A failure of the engine."""
        return vllm_error(str(error), status=500, kind="InternalServerError")

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """No gate."""
        return no_gate()

    def submit(self, sequence: Sequence, *, rank: int | None = None) -> None:
        """Hand a sequence to a rank, where it waits while the engine is paused.

        A scheduler that was resumed while the memory is away kills the engine.
        """
        if self.asleep and self.ranks[0].scheduler.hold is Hold.NOTHING:
            self.crash("a request reached the scheduler while asleep")
            return
        super().submit(sequence, rank=rank)

    def paused(self) -> bool:
        """Whether the schedulers are paused.

        Raises:
            RanksDisagree: some are, some are not.
        """
        found = {rank.scheduler.hold is not Hold.NOTHING for rank in self.ranks}
        if len(found) > 1:
            raise RanksDisagree("DP engines disagree on pause state")
        return found.pop()

    def version(self) -> str:
        """The label of the weights.

        Raises:
            RanksDisagree: the ranks have different ones.
        """
        found = {rank.weights.label for rank in self.ranks}
        if len(found) > 1:
            raise RanksDisagree(f"DP engines disagree on weight version: {sorted(found)}")
        return found.pop()

    async def set_hold(self, hold: Hold) -> None:
        """Pause or resume all ranks, between two steps of each."""

        async def apply(rank: Rank) -> None:
            rank.set_hold(hold)

        await self.on_all_ranks(apply)

    def summary(self) -> dict[str, Any]:
        """What the engine knows."""
        return {
            "asleep": sorted(self.asleep),
            "pausing": self.pausing,
            "updating": self.updating,
            "transfer_ready": self.transfer_ready,
        }


def core_of(call: Call) -> VllmCore:
    """The core of a call that a vLLM route serves."""
    core = call.core
    assert isinstance(core, VllmCore), "vLLM routes belong to vLLM cores"
    return core
