"""Passes the chunks of a stream on as they came.

A token is a chunk, so nothing runs more often. What a chunk needs is held by one function that is
made for the stream, instead of being asked for call by call.
"""

from collections.abc import Callable

from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.http.framing import CHUNK, AnswerFraming, whole_chunks
from steersman_proxy.http.splice.client import Client
from steersman_proxy.http.splice.writer import AnswerWriter

_SIGN = 0.25
"""Seconds between two signs that the engine is alive, while it sends; who asks for them counts in
seconds."""


def relay_of(
    exchange: Exchange, *, framing: AnswerFraming, writer: AnswerWriter, client: Client
) -> Callable[[bytes, float], bool]:
    """A function that passes on what was read where a chunk may begin, at a moment on the clock; it
    returns whether it did.

    It does not unless that is whole chunks, and all that came before them is written. ``exchange``
    has begun to pass an answer through.
    """
    match, put, passed, answer = CHUNK.match, client.put, exchange.passed, exchange.answer
    told = float("-inf")

    def relay(data: bytes, now: float) -> bool:
        nonlocal told
        found = match(data)
        if found is None:
            return False
        # As `whole_chunks`, without a call for the one chunk that it mostly is.
        size = int(found[1], 16)
        if found.end() + size + 2 != len(data) or data[-2:] != b"\r\n":
            size = whole_chunks(data)
            if not size:
                return False
        if client.writing_paused or writer.pending or framing.parts:
            return False
        if now - told < _SIGN:
            answer.size += size
        else:
            passed(size)
            told = now
        put(data)
        return True

    return relay
