"""New weights for a vLLM engine: from disk, or from a trainer whose transfer is framed here.

vLLM 0.32 has no single call for weights on disk: its workers are told to read them, which leaves
the name of the weights and what was computed with the old ones as they are. The name is given last,
so that an engine which shows it has everything else behind it.

A load that fails leaves half-written weights: the parameters are given up before the first file is
opened. So nothing is begun of which it can be asked beforehand whether it can be ended.
"""

import asyncio
import hashlib
import re
from typing import Any

from steersman.clock import Deadline
from steersman.engine import Runtime
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import NoAnswer
from steersman_operator.engines.dialect import (
    AFTERWARDS,
    OK,
    CallResult,
    at_least,
    failed,
    flush_skipped,
    once_changed,
    refused,
    unanswered,
    unknown,
    verdict,
)
from steersman_operator.engines.vllm_routes import NO_DEV_MODE, VllmRoutes, with_dev_mode
from steersman_operator.fleet.facts import Outcome
from steersman_operator.fleet.spec import PauseMode, Weights

RPC = "/collective_rpc"
CHECKER = "/weight_checker"

RESET_TRIES = 5
"""How often an engine is asked to empty its cache; blocks that are being moved elsewhere keep it from
doing so for a moment."""

RESET_WAIT = 0.05
"""Seconds between the first two tries; doubled each time."""

_BEFORE_ANYTHING = re.compile(
    r"reload_weights\(\) got an unexpected keyword|has no attribute 'reload_weights'"
    r"|Model reloading with"
)
"""What vLLM says if it cannot load weights from a path at all, and has not begun to."""


class VllmRefits(VllmRoutes):
    """The routes that have to do with weights."""

    runtime = Runtime.VLLM

    async def refit(self, weights: Weights, *, mode: PauseMode, deadline: Deadline) -> CallResult:
        """``reload_weights`` in all workers, ``/reset_prefix_cache``, ``/update_weight_version``.

        Requests that are frozen with their KV memory keep it, and the cache cannot be emptied; those
        of other pauses are preempted for it.
        """
        if not weights.path:
            return refused("nothing was sent: these weights have no path to be read from")
        why = await self._unfit(weights, deadline=deadline)
        if why:
            return refused(f"nothing was sent: {why}")
        body = {"method": "reload_weights", "kwargs": {"weights_path": weights.path}}
        try:
            reply = await self._client.post(RPC, body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        loaded = self._loaded(reply)
        if not loaded.ok:
            return loaded
        deadline = at_least(deadline, AFTERWARDS, clock=self._client.clock)
        keep = mode is PauseMode.KEEP
        emptied = await self._empty(
            tries=1 if keep else RESET_TRIES, preempt=not keep, deadline=deadline
        )
        done = "the weights were loaded"
        if emptied.http is None:
            return once_changed(emptied, done=done)
        # Also if that is shown already: it was said of other weights.
        named = await self._name(weights.version, deadline=deadline)
        if not named.ok:
            return once_changed(named, done=done)
        if weights.checksum:
            found = await self.checksum(deadline=deadline)
            if found is None:
                return unknown(f"{done}, and the engine did not compute their checksum")
            if found != weights.checksum:
                return failed(f"the weights have the checksum {found}, not {weights.checksum}")
        return OK if emptied.ok else flush_skipped(emptied.detail)

    async def label_version(self, version: str, *, deadline: Deadline) -> CallResult:
        """``/update_weight_version``, which is a label and nothing else. It is not sent to an engine
        that shows the version.
        """
        if await self._shown(deadline=deadline) == version:
            return OK
        return await self._name(version, deadline=deadline)

    async def _name(self, version: str, *, deadline: Deadline) -> CallResult:
        body = {"new_version": version}
        result = await self._call("/update_weight_version", {}, body=body, deadline=deadline)
        return await self._named(result, version, deadline=deadline)

    async def invalidate_cache(self, *, deadline: Deadline) -> CallResult:
        """``/reset_prefix_cache``, a bounded number of times; nothing that runs is preempted."""
        return await self._empty(tries=RESET_TRIES, preempt=False, deadline=deadline)

    async def checksum(self, *, deadline: Deadline) -> str | None:
        """``/weight_checker``. It has one for each tensor of each worker; the one here is the SHA-256
        of the lines ``name:checksum`` in the order of their names.
        """
        try:
            reply = await self._client.post(CHECKER, body={"action": "checksum"}, deadline=deadline)
        except NoAnswer:
            return None
        sums = reply.fields().get("checksums") if reply.ok else None
        return digest_of(sums) if isinstance(sums, dict) and sums else None

    async def begin(self, *, deadline: Deadline) -> CallResult:
        """``/start_weight_update``."""
        return await self._call("/start_weight_update", {}, deadline=deadline)

    async def commit(self, version: str, *, deadline: Deadline) -> CallResult:
        """``/finish_weight_update`` with the version."""
        body = {"weight_version": version}
        result = await self._call("/finish_weight_update", {}, body=body, deadline=deadline)
        return await self._named(result, version, deadline=deadline)

    # --- Inside ----------------------------------------------------------------------------------

    async def _unfit(self, weights: Weights, *, deadline: Deadline) -> str:
        """Why a refit cannot be brought to its end; empty if nothing is known against it.

        ``compare`` without a baseline is refused, without a checksum being computed for it; some
        releases refuse every action of an engine that is paused, with 409.
        """
        if await self._missing("/weight_info", deadline=deadline):
            if await self._missing("/is_paused", deadline=deadline):
                return NO_DEV_MODE
            return "this vLLM cannot name its weights, so that nobody could tell which it has"
        if not weights.checksum:
            return ""
        try:
            reply = await self._client.post(CHECKER, body={"action": "compare"}, deadline=deadline)
        except NoAnswer:
            return ""
        if reply.status == 404:
            return "a checksum is wanted, and the engine has no route to compute one"
        if reply.status == 409:
            return "a checksum is wanted, and the engine computes none while it is paused"
        return ""

    async def _missing(self, path: str, *, deadline: Deadline) -> bool:
        try:
            return (await self._client.get(path, deadline=deadline)).status == 404
        except NoAnswer:
            return False

    def _loaded(self, reply: Reply) -> CallResult:
        """What the answer to a load says of the weights."""
        if reply.ok:
            results = reply.fields().get("results")
            if isinstance(results, list) and results:
                return OK
            return failed("the engine does not say that its workers have loaded", http=reply.status)
        result = with_dev_mode(verdict(reply, what=RPC, keys=self._client.keys))
        if result.outcome is Outcome.FAILED and _BEFORE_ANYTHING.search(reply.text):
            return refused(f"this vLLM cannot read weights from a path: {result.detail}", http=500)
        return result

    async def _empty(self, *, tries: int, preempt: bool, deadline: Deadline) -> CallResult:
        """Empty the prefix cache. A 200 says nothing by itself."""
        clock, wait = self._client.clock, RESET_WAIT
        query = {"reset_running_requests": "true" if preempt else "false"}
        result = OK
        for attempt in range(tries):
            if attempt:
                await asyncio.sleep(min(wait, deadline.remaining(clock)))
                wait *= 2
            try:
                reply = await self._client.post(
                    "/reset_prefix_cache", query=query, deadline=deadline
                )
            except NoAnswer as error:
                return unanswered(error)
            result = with_dev_mode(
                verdict(reply, what="/reset_prefix_cache", keys=self._client.keys)
            )
            if not result.ok:
                return result
            if reply.fields().get("success") is True:
                return OK
            result = refused("the engine says that its cache is in use", http=reply.status)
        return result

    async def _shown(self, *, deadline: Deadline) -> str | None:
        version = (await self._fields("/weight_info", deadline=deadline)).get("weight_version")
        return version if isinstance(version, str) else None

    async def _named(self, result: CallResult, version: str, *, deadline: Deadline) -> CallResult:
        """A name is read back."""
        if not result.ok:
            return result
        deadline = at_least(deadline, AFTERWARDS, clock=self._client.clock)
        shown = await self._shown(deadline=deadline)
        if shown is None:
            return unknown(f"the weights were named {version}, and the engine does not show it")
        return OK if shown == version else failed(f"it was named {version}, and shows {shown}")


def digest_of(sums: dict[Any, Any]) -> str:
    """One digest of a checksum for each tensor."""
    lines = (f"{name}:{found}\n" for name, found in sorted(sums.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
