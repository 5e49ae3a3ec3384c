"""The shapes of ``/v1/chat/completions`` and ``/v1/completions``, free of any engine's habits."""

import abc
from typing import Any, ClassVar

from steersman_sim.engine.chat import completion_prompts, render_chat
from steersman_sim.engine.sequence import Sequence
from steersman_sim.engine.tokens import decode

_COMPLETION_TOKENS = 16
"""Default of ``max_tokens`` on ``/v1/completions``, in both engines."""


class Api(abc.ABC):
    """One of the two routes: how its prompts are read and its texts are written."""

    prefix: str
    """Of request ids."""
    kind: str
    """``object`` of a buffered answer."""
    chunk_kind: str
    """``object`` of a chunk."""
    opening: ClassVar[dict[str, Any] | None] = None
    """The delta that opens a streamed choice, if any."""

    @abc.abstractmethod
    def prompts(self, body: dict[str, Any]) -> list[list[int]]: ...

    @abc.abstractmethod
    def default_tokens(self, room: int) -> int: ...

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


class _Chat(Api):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    opening: ClassVar[dict[str, Any] | None] = {"role": "assistant", "content": ""}

    def prompts(self, body: dict[str, Any]) -> list[list[int]]:
        return [render_chat(body.get("messages"))]

    def default_tokens(self, room: int) -> int:
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


class _Completion(Api):
    prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def prompts(self, body: dict[str, Any]) -> list[list[int]]:
        return completion_prompts(body.get("prompt"))

    def default_tokens(self, room: int) -> int:
        return min(_COMPLETION_TOKENS, room)

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
