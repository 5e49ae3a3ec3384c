"""The routes under ``/_sim/``: faults, journal and life of the sim engine, over HTTP.

They belong to no real engine, need no key, and are neither journaled nor hit by faults.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from steersman_sim.engine.replies import json_reply, not_found

if TYPE_CHECKING:
    from steersman_sim.engine.engine import SimEngine


class _RankChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Makes one rank differ from the others, as a half-done control operation does."""

    rank: int
    version: str | None = None
    hold: str | None = None
    """``nothing``, ``new`` or ``everything``."""


class SideChannel:
    """Serves ``/_sim/…`` of one engine."""

    def __init__(self, engine: "SimEngine") -> None:
        self._engine = engine

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        name = request.path.removeprefix("/_sim/")
        try:
            match (request.method, name):
                case ("GET", "state"):
                    return json_reply(self._engine.state())
                case ("GET", "journal"):
                    return json_reply(self._journal(request))
                case ("GET", "answers"):
                    return json_reply(self._answers(request))
                case ("DELETE", "journal"):
                    self._engine.journal.clear()
                    return json_reply({"ok": True})
                case ("GET", "faults"):
                    return json_reply(self._engine.faults.to_json())
                case ("POST", "faults"):
                    self._engine.faults.arm_json(await request.read())
                    return json_reply(self._engine.faults.to_json())
                case ("DELETE", "faults"):
                    self._engine.faults.disarm()
                    return json_reply({})
                case ("POST", "rank"):
                    await self._change_rank(await request.read())
                    return json_reply({"ok": True})
                case ("POST", "die"):
                    await self._engine.core.die("told to by /_sim/die")
                case ("POST", "restart"):
                    self._engine.schedule_restart()
                    return json_reply({"ok": True})
                case _:
                    return not_found()
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            return json_reply({"error": str(error)}, status=400)

    def _journal(self, request: web.BaseRequest) -> list[dict[str, Any]]:
        """The entries, filtered by the queries ``path`` and ``since`` (an entry number)."""
        path = request.query.get("path")
        since = int(request.query.get("since", "0"))
        return [
            entry.to_json()
            for entry in self._engine.journal.entries
            if entry.number > since and path in (None, entry.path)
        ]

    def _answers(self, request: web.BaseRequest) -> list[dict[str, Any]]:
        """Which weights made each answer, and what it was stamped with; without the texts, so that
        it can be read often. Filtered by the query ``since`` (an entry number).
        """
        since = int(request.query.get("since", "0"))
        return [
            {
                "number": entry.number,
                "boot": entry.boot,
                "path": entry.path,
                "request_id": entry.header("X-Request-Id"),
                "status": entry.status,
                "complete": entry.ended is not None and not entry.cut and not entry.disconnected,
                "sequences": [
                    {
                        "rid": one.rid,
                        "finish": one.finish,
                        "truth": one.truth,
                        "stamped": one.stamped,
                        "stale_cached_tokens": one.stale_cached_tokens,
                    }
                    for one in generations
                ],
            }
            for entry in self._engine.journal.entries
            if entry.number > since and (generations := entry.generations)
        ]

    async def _change_rank(self, body: bytes) -> None:
        change = msgspec.json.decode(body, type=_RankChange)
        ranks = self._engine.core.ranks
        if not 0 <= change.rank < len(ranks):
            raise ValueError(f"no rank {change.rank}")
        await ranks[change.rank].change(version=change.version, hold=change.hold)
