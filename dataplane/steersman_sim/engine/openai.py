"""``/v1/chat/completions`` and ``/v1/completions``, buffered and streamed, for both engines.

What differs between the engines is a :class:`Style`; the rest is the OpenAI API.
"""

import abc
import time
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.chat import completion_prompts, render_chat
from steersman_sim.engine.core import EngineCore, Job
from steersman_sim.engine.replies import EventStream, Refusal, json_reply
from steersman_sim.engine.sampling import copies, limit, parse_sampling
from steersman_sim.engine.sequence import Finish, Sampling, Sequence
from steersman_sim.engine.serving import Collector, Emitter, run
from steersman_sim.engine.tokens import decode


class Style(abc.ABC):
    """How one engine speaks the OpenAI API."""

    completion_tokens = 16
    """Default of ``max_tokens`` on ``/v1/completions``."""
    wraps_rerank = False
    """Whether ``/v1/rerank`` answers an object around its list."""

    @abc.abstractmethod
    def error(self, message: str) -> web.Response:
        """A request that cannot be understood."""

    @abc.abstractmethod
    def check_model(self, core: EngineCore, body: dict[str, Any]) -> web.Response | None:
        """The refusal of an unknown model, if the engine cares."""

    @abc.abstractmethod
    def request_id(self, call: Call, body: dict[str, Any], *, prefix: str) -> str:
        """The id of the answer, and the stem of the sequences' ids."""

    @abc.abstractmethod
    def rank(self, call: Call, body: dict[str, Any]) -> int | None:
        """The data-parallel rank that was asked for.

        Raises:
            ValueError: it cannot be had, and the engine cares.
        """

    @abc.abstractmethod
    def choice(self, sequence: Sequence, finish: Finish) -> dict[str, Any]:
        """Members of a finished choice beyond those of OpenAI."""

    @abc.abstractmethod
    def extend(self, core: EngineCore, answer: dict[str, Any], sequences: list[Sequence]) -> None:
        """Members of a buffered answer beyond those of OpenAI."""

    @abc.abstractmethod
    def check_length(self, core: EngineCore, prompt: list[int], sampling: Sampling) -> None:
        """Refuse what does not fit into the context.

        Raises:
            ValueError: it does not.
        """


class _Api(abc.ABC):
    """One of the two routes: how its prompts are read and its texts are written."""

    prefix: str
    kind: str
    chunk_kind: str

    @abc.abstractmethod
    def prompts(self, body: dict[str, Any]) -> list[list[int]]: ...

    @abc.abstractmethod
    def default_tokens(self, style: Style, room: int) -> int: ...

    @abc.abstractmethod
    def wants_logprobs(self, body: dict[str, Any]) -> bool: ...

    @abc.abstractmethod
    def choice(self, text: str) -> dict[str, Any]:
        """A finished text in a buffered answer."""

    @abc.abstractmethod
    def delta(self, text: str) -> dict[str, Any]:
        """A new piece of text in a stream."""

    @abc.abstractmethod
    def logprobs(self, sequence: Sequence, start: int) -> dict[str, Any] | None: ...


class _Chat(_Api):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def prompts(self, body: dict[str, Any]) -> list[list[int]]:
        return [render_chat(body.get("messages"))]

    def default_tokens(self, style: Style, room: int) -> int:
        return room

    def wants_logprobs(self, body: dict[str, Any]) -> bool:
        return bool(body.get("logprobs"))

    def choice(self, text: str) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": text,
            "reasoning_content": None,
            "tool_calls": None,
        }
        return {"message": message}

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def logprobs(self, sequence: Sequence, start: int) -> dict[str, Any] | None:
        if sequence.logprobs is None:
            return None
        content = [
            {
                "token": decode([token]),
                "logprob": logprob,
                "bytes": list(decode([token]).encode()),
                "top_logprobs": [],
            }
            for token, logprob in zip(
                sequence.output[start:], sequence.logprobs[start:], strict=True
            )
        ]
        return {"content": content}


class _Completion(_Api):
    prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def prompts(self, body: dict[str, Any]) -> list[list[int]]:
        return completion_prompts(body.get("prompt"))

    def default_tokens(self, style: Style, room: int) -> int:
        return min(style.completion_tokens, room)

    def wants_logprobs(self, body: dict[str, Any]) -> bool:
        return body.get("logprobs") is not None

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, sequence: Sequence, start: int) -> dict[str, Any] | None:
        if sequence.logprobs is None:
            return None
        tokens = [decode([token]) for token in sequence.output[start:]]
        return {
            "tokens": tokens,
            "token_logprobs": sequence.logprobs[start:],
            "top_logprobs": [],
            "text_offset": list(range(start, start + len(tokens))),
        }


CHAT = _Chat()
COMPLETION = _Completion()


def usage(sequences: list[Sequence], *, copies_of_prompt: int = 1) -> dict[str, Any]:
    """The usage object. A prompt is counted once for its ``n`` answers."""
    prompts = sum(len(s.prompt) for s in sequences[::copies_of_prompt])
    completion = sum(len(sequence.output) for sequence in sequences)
    cached = sum(sequence.cached_tokens for sequence in sequences[::copies_of_prompt])
    return {
        "prompt_tokens": prompts,
        "total_tokens": prompts + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Request:
    """A parsed request of either route."""

    def __init__(self, call: Call, style: Style, api: _Api) -> None:
        core = call.core
        self.body = body = call.object()
        self.created = int(time.time())
        refusal = style.check_model(core, body)
        if refusal is not None:
            raise Refusal(refusal)
        self.model = body.get("model") or core.model
        self.id = style.request_id(call, body, prefix=api.prefix)
        self.n = copies(body)
        self.stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self.include_usage = bool(options.get("include_usage"))
        self.continuous_usage = bool(options.get("continuous_usage_stats"))
        self.token_ids = bool(body.get("return_token_ids"))
        self.echo = bool(body.get("echo"))
        rank = style.rank(call, body)
        prompts = api.prompts(body)
        self.jobs: list[Job] = []
        for prompt in prompts:
            room = max(0, core.config.context_length - len(prompt))
            most = limit(
                body,
                "max_completion_tokens",
                "max_tokens",
                default=api.default_tokens(style, room),
            )
            sampling = parse_sampling(
                body,
                max_tokens=most,
                min_tokens=limit(body, "min_tokens", default=0),
                seed_name="seed",
            )
            style.check_length(core, prompt, sampling)
            for _ in range(self.n):
                alone = len(prompts) * self.n == 1
                self.jobs.append(
                    Job(
                        rid=self.id if alone else f"{self.id}-{len(self.jobs)}",
                        prompt=prompt,
                        sampling=sampling,
                        want_logprobs=api.wants_logprobs(body),
                        salt=str(body.get("cache_salt") or body.get("extra_key") or ""),
                        rank=rank,
                    )
                )

    def envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


async def serve(call: Call, *, style: Style, api: _Api) -> web.StreamResponse:
    """Answer a request of either route."""
    try:
        request = _Request(call, style, api)
    except (ValueError, AttributeError) as error:
        return style.error(str(error))
    if request.stream:
        return await _stream(call, request, style, api)
    try:
        sequences = await run(
            call, request.jobs, collector=Collector(len(request.jobs)), core=call.core
        )
    except ValueError as error:
        return style.error(str(error))
    answer = request.envelope(api.kind)
    choices = [_choice(request, style, api, index, one) for index, one in enumerate(sequences)]
    answer["choices"] = choices
    answer["usage"] = usage(sequences, copies_of_prompt=request.n)
    if request.token_ids:
        answer["prompt_token_ids"] = sequences[0].prompt
    style.extend(call.core, answer, sequences)
    return json_reply(answer)


def _choice(
    request: _Request, style: Style, api: _Api, index: int, sequence: Sequence
) -> dict[str, Any]:
    finish = sequence.finish
    assert finish is not None, "the sequence has ended"
    text = sequence.text()
    if request.echo:
        text = decode(sequence.prompt) + text
    choice = {
        "index": index,
        **api.choice(text),
        "logprobs": api.logprobs(sequence, 0),
        "finish_reason": finish.kind.value,
        **style.choice(sequence, finish),
    }
    if request.token_ids:
        choice["token_ids"] = sequence.output
    return choice


class _Pieces:
    """Writes the chunks of a stream: what of each sequence is new since its last chunk."""

    def __init__(self, stream: EventStream, request: _Request, *, style: Style, api: _Api) -> None:
        self._stream = stream
        self._request = request
        self._style = style
        self._api = api
        self._index = {job.rid: index for index, job in enumerate(request.jobs)}
        self._sent = [0] * len(request.jobs)
        self._head = request.envelope(api.chunk_kind)

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> None:
        """Send one chunk."""
        self._stream.send({**self._head, "choices": choices, **more})

    def write(self, sequence: Sequence, final: bool) -> None:
        """Send what is new of a sequence."""
        index = self._index[sequence.rid]
        start = self._sent[index]
        if api_is_chat(self._api) and start == 0:
            first = {"role": "assistant", "content": ""}
            self.chunk([{"index": index, "delta": first, "logprobs": None, "finish_reason": None}])
        self._sent[index] = len(sequence.output)
        choice: dict[str, Any] = {
            "index": index,
            **self._api.delta(sequence.text(start=start)),
            "logprobs": self._api.logprobs(sequence, start),
            "finish_reason": None,
        }
        if self._request.token_ids:
            choice["token_ids"] = sequence.output[start:]
        if final:
            finish = sequence.finish
            assert finish is not None, "the sequence has ended"
            choice["finish_reason"] = finish.kind.value
            choice |= self._style.choice(sequence, finish)
        if self._request.continuous_usage:
            self.chunk([choice], usage=usage([sequence]))
        else:
            self.chunk([choice])


def api_is_chat(api: _Api) -> bool:
    """Whether it is the chat route."""
    return api is CHAT


async def _stream(call: Call, request: _Request, style: Style, api: _Api) -> web.StreamResponse:
    stream = EventStream(call.request)
    await stream.open()
    pieces = _Pieces(stream, request, style=style, api=api)
    emitter = Emitter(len(request.jobs), stream=stream, write=pieces.write)
    try:
        sequences = await run(call, request.jobs, collector=emitter, core=call.core)
    except ValueError as error:
        stream.send({"error": {"message": str(error), "code": 400}})
    else:
        if request.include_usage:
            pieces.chunk([], usage=usage(sequences, copies_of_prompt=request.n))
    stream.send_raw(b"data: [DONE]\n\n")
    return await stream.close()
