"""New weights for an SGLang engine: from disk, or from a trainer whose transfer is framed here.

What must be known of 0.5.23, and is not in its answers:

* An update whose cache flush is refused answers 400 with the weights *changed*. The schedulers
  stamp the new version, ``/model_info`` shows the old one. So the flush is tried before, and asked
  for within the update only if it cannot be refused.
* An update that fails while it writes "rolls back" by reading from the new path again, so after it
  the weights may be any mixture. One that finds nothing to read has written nothing.
* ``/update_weight_version`` ends every request unless it is told not to.
* After an update from disk the served model has the name of the path. Nothing here depends on it.
"""

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
from steersman_operator.engines.sglang_routes import FLUSH_TRIES, SglangRoutes
from steersman_operator.fleet.facts import Outcome
from steersman_operator.fleet.spec import PauseMode, Weights

FROM_DISK = "/update_weights_from_disk"
CHECKER = "/weights_checker"

NOTHING_TO_READ = "Failed to get weights iterator"
"""How the message of an update begins that found no weights at its path, and wrote none."""


class SglangRefits(SglangRoutes):
    """The routes that have to do with weights."""

    runtime = Runtime.SGLANG

    async def refit(self, weights: Weights, *, mode: PauseMode, deadline: Deadline) -> CallResult:
        """Flush, ``/update_weights_from_disk``, and read back.

        Requests that are frozen in place hold what they have computed, so that no flush can succeed;
        after a retract some engines refuse every flush too, and end with an update that asks for
        one (sgl-project/sglang#33784). So only an engine that was emptied by an abort is told to
        flush within the update, and only if it has just shown that it can.
        """
        if not weights.path:
            return refused("nothing was sent: these weights have no path to be read from")
        if weights.checksum and not await self._can_check(deadline=deadline):
            return refused(
                "nothing was sent: a checksum is wanted, and the engine has no route to compute one"
            )
        tries = 1 if mode is PauseMode.KEEP else FLUSH_TRIES
        flush = await self._flush(tries=tries, deadline=deadline)
        if flush.http is None:
            return refused(f"nothing was changed: {flush.detail}")
        body = {
            "model_path": weights.path,
            "weight_version": weights.version,
            "abort_all_requests": False,
            "flush_cache": flush.ok and mode is PauseMode.ABORT,
        }
        try:
            reply = await self._client.post(FROM_DISK, body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        deadline = at_least(deadline, AFTERWARDS, clock=self._client.clock)
        loaded = await self._loaded(reply, deadline=deadline)
        if not loaded.ok:
            return loaded
        proven = await self._proven(weights, deadline=deadline)
        return flush_skipped(flush.detail) if proven.ok and not flush.ok else proven

    async def label_version(self, version: str, *, deadline: Deadline) -> CallResult:
        """``/update_weight_version``, which is not sent to an engine that shows the version: an
        older one may show it and not have the route.
        """
        if await self._other_version(version, deadline=deadline) == "":
            return OK
        body = {"new_version": version, "abort_all_requests": False}
        try:
            reply = await self._client.post("/update_weight_version", body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        result = verdict(reply, what="/update_weight_version", keys=self._client.keys)
        if result.ok and not _succeeded(reply.value()):
            result = failed(f"the engine was told its version: {reply.words()}", http=reply.status)
        if not result.ok:
            return result
        deadline = at_least(deadline, AFTERWARDS, clock=self._client.clock)
        other = await self._other_version(version, deadline=deadline)
        if other is None:
            return unknown(f"the weights were named {version}, and the engine does not show it")
        return failed(f"the weights were named {version}, and it {other}") if other else OK

    async def invalidate_cache(self, *, deadline: Deadline) -> CallResult:
        """``/flush_cache``, a bounded number of times."""
        return await self._flush(deadline=deadline)

    async def checksum(self, *, deadline: Deadline) -> str | None:
        """``/weights_checker``: over all ranks, in their order."""
        try:
            reply = await self._client.post(CHECKER, body={"action": "checksum"}, deadline=deadline)
        except NoAnswer:
            return None
        fields = reply.fields() if reply.ok else {}
        found = fields.get("per_engine_checksum")
        return found if fields.get("success") is True and isinstance(found, str) else None

    async def begin(self, *, deadline: Deadline) -> CallResult:
        """``/begin_weight_update``, without which 0.5.23 refuses a transfer. Engines before it have
        no such sessions, and need none.
        """
        result = await self._call("/begin_weight_update", {"selector": "all"}, deadline=deadline)
        return OK if result.http == 404 else result

    async def commit(self, version: str, *, deadline: Deadline) -> CallResult:
        """``/end_weight_update``, and the label if the transfer has not named the weights."""
        result = await self._call("/end_weight_update", {}, deadline=deadline)
        if not result.ok and result.http != 404:
            return result
        labelled = await self.label_version(version, deadline=deadline)
        return once_changed(labelled, done="the transfer was ended")

    # --- Inside ----------------------------------------------------------------------------------

    async def _can_check(self, *, deadline: Deadline) -> bool:
        """Whether there may be a route for checksums. Asked with a method that it does not take:
        that costs no checksum, and tells one that is there (405) from one that is not (404).
        """
        try:
            reply = await self._client.options(CHECKER, deadline=deadline)
        except NoAnswer:
            return True
        return reply.status != 404

    async def _loaded(self, reply: Reply, *, deadline: Deadline) -> CallResult:
        """What the answer to an update says of the weights."""
        value, status = reply.value(), reply.status
        if reply.ok:
            if _succeeded(value):
                return OK
            return failed(f"the update was answered without success: {reply.words()}", http=status)
        if status == 400 and not _invalid(value):
            said = self._client.keys.blank(reply.words())
            if _nothing_read(value) and await self._one_node(deadline):
                return refused(said, http=status)
            shows = await self._shows(deadline=deadline)
            return unknown(
                f"the update was answered 400, which leaves the weights unknown: {said}{shows}",
                http=status,
            )
        result = verdict(reply, what=FROM_DISK, keys=self._client.keys)
        if result.outcome is not Outcome.FAILED:
            return result
        shows = await self._shows(deadline=deadline)
        return failed(result.detail + shows, http=status)

    async def _one_node(self, deadline: Deadline) -> bool:
        """Whether all ranks read the same disk. If not, others may have found what the first one,
        which is the one that answers, has not.
        """
        launch = await self._launch(deadline=deadline)
        return bool(launch) and launch.get("nnodes", 1) == 1

    async def _proven(self, weights: Weights, *, deadline: Deadline) -> CallResult:
        """Whether an engine shows what it says that it has loaded."""
        other = await self._other_version(weights.version, deadline=deadline)
        if other is None:
            return unknown("the weights were loaded, and the engine does not say which it has")
        if other:
            return failed(f"the engine says that it has loaded {weights.version}, and it {other}")
        if not weights.checksum:
            return OK
        found = await self.checksum(deadline=deadline)
        if found is None:
            return unknown("the weights were loaded, and the engine did not compute their checksum")
        if found != weights.checksum:
            return failed(f"the weights have the checksum {found}, not {weights.checksum}")
        return OK

    async def _other_version(self, version: str, *, deadline: Deadline) -> str | None:
        """A clause about another version that it shows; empty if it shows this one everywhere,
        ``None`` if it shows none.

        ``/model_info`` has the version of the process that answers. Those of the schedulers, which
        stamp what they generate, are in ``/server_info``; they count only if they differ from the
        version of the launch, so that an engine that shows nothing else there is not misjudged.
        """
        shown = await self._version(deadline=deadline)
        if shown is None:
            return None
        if shown != version:
            return f"shows {shown}"
        info = await self._launch(deadline=deadline)
        stamped = _scheduler_versions(info)
        wrong = sorted(stamped - {version})
        if wrong and stamped != {info.get("weight_version")}:
            return f"has schedulers that stamp {', '.join(wrong)}"
        return ""

    async def _shows(self, *, deadline: Deadline) -> str:
        """What an engine shows after an update that has failed, for a person."""
        shown = await self._version(deadline=deadline)
        if shown is None:
            return ""
        stamped = _scheduler_versions(await self._launch(deadline=deadline))
        also = f", its schedulers stamp {', '.join(sorted(stamped))}" if stamped else ""
        return f" (it shows {shown}{also})"


def _succeeded(value: Any) -> bool:
    """Whether an answer says so, for every rank of those that it speaks for."""
    parts = value if isinstance(value, list) else [value]
    return bool(parts) and all(
        isinstance(part, dict) and _true(part.get("success")) for part in parts
    )


def _true(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(one is True for one in value)
    return value is True


def _nothing_read(value: Any) -> bool:
    """Whether no data-parallel rank has found anything; their messages come in one line."""
    message = value.get("message") if isinstance(value, dict) else None
    if not isinstance(message, str):
        return False
    return all(part.startswith(NOTHING_TO_READ) for part in message.split(" | "))


def _invalid(value: Any) -> bool:
    """Whether it is the refusal of a body that could not be understood, before anything was done."""
    return isinstance(value, dict) and value.get("object") == "error" and "success" not in value


def _scheduler_versions(info: dict[str, Any]) -> set[str]:
    states = info.get("internal_states")
    found = [
        state.get("weight_version")
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict)
    ]
    return {version for version in found if isinstance(version, str)}
