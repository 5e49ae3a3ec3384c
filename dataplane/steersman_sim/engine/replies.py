"""Answers: JSON, text, errors of both engines, and server-sent events."""

from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http import HttpVersion11

_encode = msgspec.json.Encoder().encode

_BASE_HEADERS = {"Server": "uvicorn"}
_JSON_HEADERS = _BASE_HEADERS | {"Content-Type": "application/json"}
_TEXT_HEADERS = _BASE_HEADERS | {"Content-Type": "text/plain; charset=utf-8"}
_EVENT_HEADERS = _BASE_HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"}

_HIGH_WATER = 1 << 20
"""Unsent bytes of one stream beyond which chunks are merged until the client reads."""


def json_reply(value: Any, *, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=_encode(value), status=status, headers=_JSON_HEADERS)


def text_reply(text: str, *, status: int = 200) -> web.Response:
    """A plain text answer."""
    return web.Response(body=text.encode(), status=status, headers=_TEXT_HEADERS)


def empty_reply(*, status: int = 200) -> web.Response:
    """An answer without a body."""
    return web.Response(status=status, headers=_BASE_HEADERS)


def answer_of(body: Any, *, status: int) -> web.Response:
    """Whatever a test wants to have answered: JSON, or a string as plain text."""
    return (
        text_reply(body, status=status)
        if isinstance(body, str)
        else json_reply(body, status=status)
    )


class Refusal(Exception):
    """A request that is answered with an error; the dialect's handlers choose the shape."""

    def __init__(self, reply: web.Response) -> None:
        super().__init__(reply.status)
        self.reply = reply


def openai_error(message: str, *, status: int = 400, kind: str = "Bad Request") -> web.Response:
    """SGLang 0.5.23: what validation errors and the OpenAI routes answer."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return json_reply(body, status=status)


def helper_error(message: str, *, status: int = 400) -> web.Response:
    """SGLang 0.5.23: what the handlers' own error helper answers."""
    return json_reply({"error": {"message": message}}, status=status)


def vllm_error(
    message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
) -> web.Response:
    """vLLM 0.32: the error object of every OpenAI route."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return json_reply({"error": error}, status=status)


def not_found() -> web.Response:
    """What FastAPI answers on an unknown path."""
    return json_reply({"detail": "Not Found"}, status=404)


class EventStream:
    """A server-sent event answer that the scheduler writes to without waiting.

    A chunk goes straight to the transport: one task switch per token and stream would cost more
    than everything else. Backpressure is the caller's: while :attr:`clogged`, it keeps its news
    and sends them merged with the next.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=_EVENT_HEADERS)
        self._chunked = request.version >= HttpVersion11
        self._transport = request.transport

    @property
    def clogged(self) -> bool:
        """Whether the client does not read."""
        transport = self._transport
        return transport is None or transport.get_write_buffer_size() > _HIGH_WATER

    async def open(self) -> None:
        """Send the head."""
        if self._chunked:
            self._response.enable_chunked_encoding()
        else:
            self._response.force_close()
        await self._response.prepare(self._request)
        await self._response.write(b"")

    def send(self, value: Any) -> None:
        """Send one event whose data is JSON."""
        self.send_raw(b"data: %b\n\n" % _encode(value))

    def send_named(self, name: str, value: Any) -> None:
        """Send one event with a name."""
        self.send_raw(b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value)))

    def send_raw(self, event: bytes) -> None:
        """Send the bytes of events as they are."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)

    async def close(self) -> web.StreamResponse:
        """Send the end of the answer."""
        await self._response.write_eof()
        return self._response
