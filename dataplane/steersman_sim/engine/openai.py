"""``/v1/chat/completions`` and ``/v1/completions``, buffered and streamed, for both engines.

What differs between the engines is a :class:`Style`; the rest is the OpenAI API.
"""

import abc
import time
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import EngineCore, Job
from steersman_sim.engine.openai_shapes import Api, usage
from steersman_sim.engine.replies import EventStream, Refusal, json_reply
from steersman_sim.engine.sampling import copies, limit, parse_sampling
from steersman_sim.engine.sequence import Finish, Sampling, Sequence
from steersman_sim.engine.serving import Collector, Emitter, run
from steersman_sim.engine.tokens import decode


class Style(abc.ABC):
    """How one engine speaks the OpenAI API."""

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


class _Request:
    """A parsed request of either route."""

    def __init__(self, call: Call, style: Style, api: Api) -> None:
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
                default=api.default_tokens(room),
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


async def serve(call: Call, *, style: Style, api: Api) -> web.StreamResponse:
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
    request: _Request, style: Style, api: Api, index: int, sequence: Sequence
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

    def __init__(self, stream: EventStream, request: _Request, *, style: Style, api: Api) -> None:
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
        opening = self._api.opening
        if opening is not None and start == 0:
            first = {"index": index, "delta": opening, "logprobs": None, "finish_reason": None}
            self.chunk([first])
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


async def _stream(call: Call, request: _Request, style: Style, api: Api) -> web.StreamResponse:
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
