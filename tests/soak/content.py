"""What is asked and answered in the soak: every byte of a right answer follows from its question.

Each question has a nonce, and each part of its answer shows it. So a client knows at every byte
whether it reads its own answer, and an engine whether it reads one whole question of one client.
"""

import msgspec

VERSION = "7"
"""The weight version of all engines."""

POISON = "poison"
"""Begins the nonce of what must reach nobody: malformed requests, answers that nobody asked for."""

KINDS = ("json", "json-chunked", "text", "text-chunked", "eof", "sse", "error", "empty")
"""How an engine answers: content type and framing."""

FAULTS = ("rst", "fin", "stall", "garbage", "trickle", "surplus", "early", "hasty")
"""What an engine does wrong, from byte ``at`` of the body on; -1 is before the head.

Reset, orderly close, silence, bytes that are no HTTP, a byte now and then, a second answer right
after the first, and an answer before the question was read, after which it closes or reads on.
"""


class Ask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One question; the JSON body of its request."""

    model: str
    nonce: str
    kind: str = "json"
    size: int = 100
    """Of the answer, roughly, in bytes."""
    pause: float = 0.0
    """Seconds between two parts of the answer, and before its head."""
    fault: str = ""
    at: int = -1
    pad: str = ""
    """Makes the request large; :func:`filler` of the nonce."""


def filler(nonce: str, size: int) -> bytes:
    """So many bytes that show the nonce."""
    unit = nonce.encode() + b"."
    return (unit * (size // len(unit) + 1))[:size]


def answer_body(ask: Ask) -> bytes:
    """The body of the right answer."""
    nonce = ask.nonce.encode()
    match ask.kind:
        case "empty":
            return b""
        case "error":
            return b'{"error":{"message":"no, %b"}}' % nonce
        case "sse":
            events = max(1, ask.size // 100)
            return b"".join(
                b'data: {"nonce":"%b","i":%d,"meta_info":{"weight_version":"%b"}}\n\n'
                % (nonce, number, VERSION.encode())
                for number in range(events)
            ) + (b"data: [DONE]\n\n")
        case "text" | "text-chunked" | "eof":
            return filler(ask.nonce, ask.size)
        case _:
            return b'{"nonce":"%b","text":"%b","meta_info":{"weight_version":"%b"}}' % (
                nonce,
                filler(ask.nonce, ask.size),
                VERSION.encode(),
            )


def answer_status(ask: Ask) -> int:
    return {"error": 400, "empty": 204}.get(ask.kind, 200)


CONTENT_TYPES = {
    "json": b"application/json",
    "json-chunked": b"application/json",
    "error": b"application/json",
    "sse": b"text/event-stream",
}
