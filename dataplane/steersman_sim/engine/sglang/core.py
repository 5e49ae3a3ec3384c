"""One boot of an SGLang 0.5.23 engine: the tokenizer's state beside the schedulers' own."""

import hmac
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Access, Call, Route
from steersman_sim.engine.config import EngineConfig
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.replies import json_reply, openai_error, text_reply
from steersman_sim.engine.sequence import Sequence
from steersman_sim.engine.sglang.gate import Gate

MEMORY_TAGS = ("kv_cache", "weights", "cuda_graph")

_ALWAYS_OPEN = ("/health", "/ready", "/metrics")


class SglangCore(EngineCore):
    """The state that SGLang's HTTP process keeps, next to that of its schedulers."""

    deferred_abort = True

    def __init__(self, config: EngineConfig, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.gate = Gate(changed=self.watch.notify)
        self.version = config.weight_version
        """The tokenizer's idea of the version: ``/model_info`` and chunks that are not final."""
        self.load_format = "auto"
        self.released: set[str] = set()
        """Memory tags that are released now."""
        self.session: str | None = None
        """The selector of the open weight update session."""
        self.groups: set[str] = set()
        """Names of the weight update groups that exist."""
        self.snapshot: list[str] | None = None
        """Checksums that ``weights_checker`` was told to remember."""
        self.healthy = not config.startup_s
        """``server_status`` is Up; a failed health probe sets it to UnHealthy until a good one."""
        self.flushing = False
        """A ``flush_cache`` with a timeout is waiting."""
        took = Random().random
        self.startup_time = {
            "load_weight": 8.0 + took(),
            "kv_cache_allocation": 0.5 + took(),
            "scheduler_e2e": 20.0 + took(),
            "cuda_graph": {"decode": 4.0 + took()},
            "tokenizer_e2e": 22.0 + took(),
        }
        """Seconds that each phase of the start took; never the same twice, whatever the seed."""

    def authorize(self, call: Call, route: Route) -> web.Response | None:
        """SGLang's matrix of two keys (``/ping`` needs the data key, ``/health`` never does)."""
        key, admin = self.config.api_key, self.config.admin_api_key
        if key is None and admin is None:
            return None
        if call.entry.path.startswith(_ALWAYS_OPEN):
            return None
        wanted = key
        if route.access is Access.ADMIN and admin is not None:
            wanted = admin
        if route.access is Access.OPEN or wanted is None or bearer_is(call, wanted):
            return None
        return json_reply({"error": "Unauthorized"}, status=401)

    def invalid(self, message: str) -> web.Response:
        """A body that does not validate."""
        return openai_error(message)

    def failed(self, error: Exception) -> web.Response:
        """An uncaught exception."""
        return text_reply("Internal Server Error", status=500)

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """The tokenizer gate."""
        return self.gate.admitted()

    def submit(self, sequence: Sequence, *, rank: int | None = None) -> None:
        """Hand a sequence to a rank.

        A released engine has no memory to run it in: the scheduler dies. Nothing keeps such a
        request out, since a release does not close the gate.
        """
        if self.released & {"kv_cache", "weights"}:
            self.crash("a request reached the scheduler while memory was released")
            return
        super().submit(sequence, rank=rank)

    def start(self) -> None:
        """Begin to work; probes fail until the start-up time is over."""
        super().start()
        if self.config.startup_s:
            self.spawn(self._start_up(), name="start-up")

    async def _start_up(self) -> None:
        await self.pace.sleep(self.config.startup_s)
        self.healthy = True
        self.watch.notify()

    def summary(self) -> dict[str, Any]:
        """What the tokenizer process knows."""
        return {
            "paused": self.gate.paused,
            "waiting_at_gate": self.gate.waiting,
            "version": self.version,
            "released": sorted(self.released),
            "session": self.session,
            "healthy": self.healthy,
        }


def bearer_is(call: Call, key: str) -> bool:
    """Whether the call carries ``Authorization: Bearer <key>``."""
    given = call.header("Authorization") or ""
    scheme, _, token = given.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), key.encode())


def core_of(call: Call) -> SglangCore:
    """The core of a call that an SGLang route serves."""
    core = call.core
    assert isinstance(core, SglangCore), "SGLang routes belong to SGLang cores"
    return core
