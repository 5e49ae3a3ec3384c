"""``/v1/responses`` and ``/v1/messages``: the main events of both APIs, around one sequence."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.chat import content_text, render_chat
from steersman_sim.engine.core import Job
from steersman_sim.engine.openai import Style
from steersman_sim.engine.replies import EventStream, Refusal, json_reply
from steersman_sim.engine.sampling import limit, parse_sampling
from steersman_sim.engine.sequence import FinishKind, Sequence
from steersman_sim.engine.serving import Collector, Emitter, run


class OtherChats:
    """The two routes, in one engine's style."""

    def __init__(self, style: Style) -> None:
        self._style = style

    def _job(self, call: Call, prompt: list[int], body: dict[str, Any], most: str) -> Job:
        try:
            room = max(1, call.core.config.context_length - len(prompt))
            sampling = parse_sampling(
                body,
                max_tokens=limit(body, most, default=room),
                min_tokens=0,
                seed_name="seed",
            )
            self._style.check_length(call.core, prompt, sampling)
        except ValueError as error:
            raise Refusal(self._style.error(str(error))) from None
        return Job(rid=uuid.uuid4().hex, prompt=prompt, sampling=sampling)

    async def responses(self, call: Call) -> web.StreamResponse:
        """``/v1/responses``: one message, buffered or as the main events of a stream."""
        body = call.object()
        wanted = body.get("input")
        try:
            messages = [{"role": "user", "content": wanted}] if isinstance(wanted, str) else wanted
            prompt = render_chat(messages)
        except ValueError as error:
            return self._style.error(str(error))
        job = self._job(call, prompt, body, "max_output_tokens")
        identity = f"resp_{job.rid}"

        def answer(sequence: Sequence | None) -> dict[str, Any]:
            text = "" if sequence is None else sequence.text()
            output = {
                "id": f"msg_{job.rid}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
            counted = None
            if sequence is not None:
                counted = {
                    "input_tokens": len(sequence.prompt),
                    "input_tokens_details": {"cached_tokens": sequence.cached_tokens},
                    "output_tokens": len(sequence.output),
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": sequence.context,
                }
            return {
                "id": identity,
                "object": "response",
                "created_at": int(time.time()),
                "model": body.get("model") or call.core.model,
                "status": "in_progress" if sequence is None else "completed",
                "output": [] if sequence is None else [output],
                "usage": counted,
            }

        if not body.get("stream"):
            (sequence,) = await run(call, [job], collector=Collector(1), core=call.core)
            return json_reply(answer(sequence))
        events = _Events(call, job)
        await events.open()
        events.send("response.created", response=answer(None))

        def delta(text: str) -> None:
            events.send("response.output_text.delta", item_id=f"msg_{job.rid}", delta=text)

        sequence = await events.run(delta)
        events.send("response.completed", response=answer(sequence))
        return await events.close()

    async def messages(self, call: Call) -> web.StreamResponse:
        """``/v1/messages``: the Anthropic shape, buffered or streamed."""
        body = call.object()
        try:
            system = content_text(body.get("system"))
            turns = body.get("messages") or []
            prompt = render_chat([{"role": "system", "content": system}, *turns])
        except (ValueError, TypeError) as error:
            return self._style.error(str(error))
        job = self._job(call, prompt, body, "max_tokens")
        reasons = {
            FinishKind.STOP: "end_turn",
            FinishKind.LENGTH: "max_tokens",
            FinishKind.ABORT: "refusal",
        }

        def message(sequence: Sequence | None) -> dict[str, Any]:
            ended = None if sequence is None else sequence.finish
            text = "" if sequence is None else sequence.text()
            return {
                "id": f"msg_{job.rid}",
                "type": "message",
                "role": "assistant",
                "model": body.get("model") or call.core.model,
                "content": [] if sequence is None else [{"type": "text", "text": text}],
                "stop_reason": None if ended is None else reasons[ended.kind],
                "stop_sequence": None,
                "usage": {
                    "input_tokens": len(prompt),
                    "output_tokens": 0 if sequence is None else len(sequence.output),
                },
            }

        if not body.get("stream"):
            (sequence,) = await run(call, [job], collector=Collector(1), core=call.core)
            return json_reply(message(sequence))
        events = _Events(call, job)
        await events.open()
        events.send("message_start", message=message(None))
        block = {"type": "text", "text": ""}
        events.send("content_block_start", index=0, content_block=block)

        def delta(text: str) -> None:
            piece = {"type": "text_delta", "text": text}
            events.send("content_block_delta", index=0, delta=piece)

        sequence = await events.run(delta)
        events.send("content_block_stop", index=0)
        whole = message(sequence)
        ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        events.send("message_delta", delta=ending, usage=whole["usage"])
        events.send("message_stop")
        return await events.close()


class _Events:
    """A stream of typed events about one sequence."""

    def __init__(self, call: Call, job: Job) -> None:
        self._call = call
        self._job = job
        self._stream = EventStream(call.request)
        self._sent = 0

    async def open(self) -> None:
        await self._stream.open()

    def send(self, kind: str, **members: Any) -> None:
        self._stream.send_named(kind, {"type": kind, **members})

    async def run(self, delta: Callable[[str], None]) -> Sequence:
        def write(sequence: Sequence, final: bool) -> None:
            text = sequence.text(start=self._sent)
            self._sent = len(sequence.output)
            delta(text)

        emitter = Emitter(1, stream=self._stream, write=write)
        (sequence,) = await run(self._call, [self._job], collector=emitter, core=self._call.core)
        return sequence

    async def close(self) -> web.StreamResponse:
        return await self._stream.close()
