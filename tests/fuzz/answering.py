"""What an engine's bytes mean: the other half of the model, see :mod:`tests.fuzz.reading`."""

import json
import re
from enum import Enum
from typing import NamedTuple

from tests.fuzz.reading import tokens_of
from tests.fuzz.strict import Headers, values

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class State(Enum):
    """How far an engine's answer came."""

    WHOLE = "whole"
    NOTHING = "nothing"
    """Not one byte of it."""
    STOPPED = "stopped"
    """It is a proper beginning, and no more comes."""
    BAD = "bad"
    """It is no HTTP, or what two readers could see differently: 502, or a broken answer."""
    ODD = "odd"
    """This model says nothing of it."""


class Reply(NamedTuple):
    """An engine's final answer, as far as it came."""

    state: State
    status: int = 0
    """0 if the head did not come."""
    reason: bytes = b""
    headers: Headers = []  # noqa: RUF012 (never changed)
    body: bytes = b""
    framing: str = "none"
    reusable: bool = False
    """Whether the engine's connection can serve again, if the engine keeps it open."""
    rest: bytes = b""
    """What came after its end."""
    interim: int = 0
    why: str = ""


def read_reply(data: bytes, *, method: bytes, end: str) -> Reply:
    """Read what the engine sent; ``end`` as :class:`tests.fuzz.example.Answer` has it."""
    interim = 0
    begun = bool(data)
    while True:
        if data[:1] in (b"\r", b"\n"):
            return Reply(State.ODD, interim=interim, why="empty lines before it")
        found = data.find(b"\r\n\r\n")
        if found < 0:
            if not begun:
                return Reply(State.NOTHING)
            if _proper_start(data):
                return Reply(State.STOPPED, interim=interim)
            return Reply(State.ODD, why="the beginning of a head")
        head, data = data[:found], data[found + 4 :]
        reply = _head(head, method)
        if reply.state is not State.WHOLE or reply.status >= 200:
            break
        interim += 1
    if reply.state is not State.WHOLE:
        return reply._replace(interim=interim)
    return _body(reply._replace(interim=interim), data, end)


def _proper_start(data: bytes) -> bool:
    """Whether a cut head is the beginning of a plain one, for sure."""
    lines = data.removesuffix(b"\r").split(b"\r\n")
    first = re.fullmatch(rb"HTTP/1\.1 [2-5][0-9]{2} [A-Za-z ]*", lines[0])
    if first is None:
        return b"HTTP/1.1 200 OK".startswith(data)
    plain = re.compile(rb"[A-Za-z\-]+: [A-Za-z0-9/\-]*")
    *complete, last = lines[1:] or [b""]
    if b"content-length" in data.lower() or not all(map(plain.fullmatch, complete)):
        return False
    return re.fullmatch(rb"[A-Za-z\-]*:?", last) is not None or plain.fullmatch(last) is not None


def _head(head: bytes, method: bytes) -> Reply:
    first, *lines = head.split(b"\r\n")
    line = re.fullmatch(rb"HTTP/(1\.[01]) ([1-5][0-9]{2}) ([^\r\n\0]*)", first)
    if line is None:
        bad = re.match(rb"HTTP/", first) is None
        return Reply(State.BAD if bad else State.ODD, why="status line")
    if _CONTROL.search(line[3]):
        return Reply(State.ODD, why="reason")
    version, status = line[1], int(line[2])
    headers: Headers = []
    for text in lines:
        name, colon, value = text.partition(b":")
        if not colon or _TOKEN.fullmatch(name) is None:
            return Reply(State.ODD, why="not a header")
        if _CONTROL.search(value):
            return Reply(State.ODD, why="control character in a value")
        if value.endswith(b"\t") and name.lower() in (b"transfer-encoding", b"content-length"):
            return Reply(State.ODD, why="a tab at the end of what frames the body")
        headers.append((name, value.strip(b" \t")))
    reply = Reply(State.WHOLE, status, line[3], headers)
    if status == 101:
        return reply._replace(state=State.BAD, status=0, why="101")
    lengths, codings = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    if status < 200:
        if lengths or codings:
            return reply._replace(state=State.ODD, why="interim answer with a body")
        if version == b"1.0" or b"close" in tokens_of(headers):
            return reply._replace(state=State.ODD, why="interim answer and no other")
        return reply
    why = ""
    if len(set(lengths)) > 1:
        why = "two Content-Length"
    elif lengths and re.fullmatch(rb"[0-9]+", lengths[0]) is None:
        why = "Content-Length"
    elif lengths and codings:
        why = "Content-Length and Transfer-Encoding"
    elif codings and [coding.lower() for coding in codings] != [b"chunked"]:
        why = "Transfer-Encoding"
    if why:
        return Reply(State.BAD, why=why)
    if len(lengths) > 1 or (lengths and len(lengths[0]) > 9) or (codings and version == b"1.0"):
        return Reply(State.ODD, why="framing")
    if len(head) > 30_000 or len(headers) > 100:
        return Reply(State.ODD, why="long head")
    tokens = tokens_of(headers)
    if tokens & {b"content-length", b"content-type", b"transfer-encoding"}:
        return Reply(State.ODD, why="Connection lists what must stay")
    keep = b"close" not in tokens and (version == b"1.1" or b"keep-alive" in tokens)
    if method == b"HEAD" or status in (204, 304):
        framing = "none"
    elif codings:
        framing = "chunked"
    elif lengths:
        framing = "length"
    else:
        framing, keep = "eof", False
    return reply._replace(framing=framing, reusable=keep)


def _body(reply: Reply, data: bytes, end: str) -> Reply:
    match reply.framing:
        case "none":
            body, rest, state = b"", data, State.WHOLE
        case "length":
            size = int(values(reply.headers, b"content-length")[0])
            body, rest = data[:size], data[size:]
            state = State.WHOLE if len(body) == size else State.STOPPED
        case "eof":
            body, rest, state = data, b"", State.WHOLE if end == "fin" else State.STOPPED
        case _:
            body, rest, state = _chunks(data)
    return reply._replace(body=body, state=state, reusable=reply.reusable and not rest, rest=rest)


def _chunks(data: bytes) -> tuple[bytes, bytes, State]:
    body = b""
    while True:
        line, found, rest = data.partition(b"\r\n")
        if not found:
            plain = re.fullmatch(rb"[0-9a-fA-F]{0,6}\r?", line) is not None
            return body, b"", State.STOPPED if plain else State.ODD
        size = re.fullmatch(rb"([0-9a-fA-F]{1,6})((?:;[a-z0-9]+(?:=[a-z0-9]+)?)*)", line)
        if size is None:
            bad = re.match(rb"[0-9a-fA-F]", line) is None
            return body, b"", State.BAD if bad else State.ODD
        length = int(size[1], 16)
        if not length:
            return (body, *_after(rest))
        body += rest[:length]
        if len(rest) < length + 2:
            plain = rest[length:] in (b"", b"\r")
            return body, b"", State.STOPPED if plain else State.BAD
        if rest[length : length + 2] != b"\r\n":
            return body, b"", State.BAD
        data = rest[length + 2 :]


def _after(data: bytes) -> tuple[bytes, State]:
    """What follows the last chunk, trailers taken out."""
    if data.startswith(b"\r\n"):
        return data[2:], State.WHOLE
    end = data.find(b"\r\n\r\n")
    if end >= 0 and all(
        re.fullmatch(rb"[A-Za-z\-]+: [a-z0-9]*", line) for line in data[:end].split(b"\r\n")
    ):
        return data[end + 4 :], State.WHOLE
    return b"", State.STOPPED if data in (b"", b"\r") else State.ODD


# --- Weights --------------------------------------------------------------------------------------


def reported(body: bytes) -> str | None:
    """The one plain version that a JSON body reports; ``None`` if none. ``ValueError``: not plain."""
    if b"weight_version" not in body:
        return None
    content = json.loads(body)
    found: list[str] = []
    for key in ("meta_info", "metadata"):
        meta = content.get(key) if isinstance(content, dict) else None
        if isinstance(meta, dict) and set(meta) == {"weight_version"}:
            found.append(meta["weight_version"])
    if len(found) != 1 or body.count(b"weight_version") != 1:
        raise ValueError("not plain")
    if not re.fullmatch(r"0|[1-9][0-9]{0,3}", str(found[0])):
        raise ValueError("not a plain version")
    return str(found[0])
