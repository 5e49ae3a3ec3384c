"""De-framing without a socket, and the request's side of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.clock import FakeClock
from steersman_proxy.http.endpoint import Endpoint, base_url
from steersman_proxy.http.framing import AnswerFraming, InvalidAnswer, whole_chunks
from steersman_proxy.http.request import PIECE, pieces, request_head
from steersman_proxy.http.timer import MovingDeadline


def framing(method: str = "POST") -> AnswerFraming:
    return AnswerFraming(method=method, max_head_bytes=65536)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """The bytes of a valid answer, its body, and whether it ends with the connection."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    body = b"".join(parts)
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    extra = draw(st.lists(st.sampled_from([b"A: b\r\n", b"Set-Cookie: x=y\r\n", b"Empty:\r\n"])))
    head = interim + b"HTTP/1.1 200 " + draw(st.sampled_from([b"OK", b"", b"Very well"])) + b"\r\n"
    head += b"".join(extra)
    match draw(st.sampled_from(["length", "chunked", "eof"])):
        case "length":
            return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, body, False
        case "chunked":
            extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
            size = draw(st.sampled_from([b"%x", b"%X", b"000%x"]))
            trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
            chunks = b"".join(
                size % len(part) + extension + b"\r\n" + part + b"\r\n" for part in parts
            )
            end = b"0\r\n" + trailers + b"\r\n"
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + end, body, False
        case _:
            return head + b"\r\n" + body, body, True


@given(answers(), st.data())
def test_no_way_of_cutting_changes_the_body(
    answer: tuple[bytes, bytes, bool], data: st.DataObject
) -> None:
    whole, body, until_eof = answer
    cuts = sorted(data.draw(st.lists(st.integers(1, max(1, len(whole) - 1)), max_size=8)))
    framed = framing()
    got = b""
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        if start < end:
            framed.feed(whole[start:end])
        if framed.parts and data.draw(st.booleans()):
            got += framed.take()
    if framed.parts:
        got += framed.take()
    assert got == body
    assert framed.head_done
    if until_eof:
        assert not framed.complete
        assert framed.eof()
    assert framed.complete
    assert not framed.surplus
    assert framed.keep_alive is not until_eof


@given(answers(), st.data())
def test_an_answer_cut_short_is_not_complete(
    answer: tuple[bytes, bytes, bool], data: st.DataObject
) -> None:
    whole, _, until_eof = answer
    cut = data.draw(st.integers(0, len(whole) - 1))
    framed = framing()
    if cut:
        framed.feed(whole[:cut])
    assert not framed.complete
    assert framed.eof() is (until_eof and framed.head_done)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    framed = framing()
    try:
        framed.feed(data)
    except InvalidAnswer:
        return
    assert not framed.complete or framed.status >= 200


def test_bytes_after_the_end_are_surplus_however_they_come() -> None:
    for cut in (38, 39):  # in the same read as the end, and after it
        framed = framing()
        whole = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nX"
        framed.feed(whole[:cut])
        if cut == 38:
            assert framed.complete
            assert not framed.surplus
            framed.feed(whole[cut:])
        assert framed.surplus


@pytest.mark.parametrize("end", range(1, 45))
def test_a_second_answer_leaves_nothing_in_the_first_one(end: int) -> None:
    """An engine out of step; both answers may come in one read, before anybody looks."""
    second = b"HTTP/1.1 404 Other\r\nX-Other: 1\r\nContent-Length: 5\r\n\r\nother"
    framed = framing()
    framed.feed(b"HTTP/1.1 200 Fine\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok" + second[:end])
    assert framed.complete
    assert (framed.status, framed.reason) == (200, b"Fine")
    assert framed.headers == [(b"X-A", b"1"), (b"Content-Length", b"2")]
    assert framed.take() == b"ok"
    assert framed.surplus


# --- Requests --------------------------------------------------------------------------------------


def test_a_head_is_written_as_it_was_given() -> None:
    head = request_head(
        method="POST", target="/x%2F?q=\udce9", headers=[(b"Host", b"h"), (b"x-Y", b" \xe9")]
    )
    assert head == b"POST /x%2F?q=\xe9 HTTP/1.1\r\nHost: h\r\nx-Y:  \xe9\r\n\r\n"


SIZES = st.sampled_from([0, 1, 1000, 65535, 65536, 65537, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])


@given(st.lists(SIZES, max_size=6))
def test_pieces_are_the_request_in_order_and_small(sizes: list[int]) -> None:
    body = [bytes([number]) * size for number, size in enumerate(sizes)]
    given_out = list(pieces(b"HEAD", body))
    assert b"".join(given_out) == b"HEAD" + b"".join(body)
    assert all(0 < len(piece) <= PIECE for piece in given_out)


def test_big_parts_are_not_copied() -> None:
    part = bytes(10 * PIECE)
    given_out = list(pieces(b"HEAD", [part]))
    assert given_out[0] == b"HEAD"
    assert all(isinstance(piece, memoryview) and piece.obj is part for piece in given_out[1:])


# --- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "endpoint", "authority", "path"),
    [
        ("http://10.0.0.1:8000", ("http", "10.0.0.1", 8000), b"10.0.0.1:8000", ""),
        ("http://Engine-0.svc", ("http", "engine-0.svc", 80), b"engine-0.svc", ""),
        ("https://e:443/", ("https", "e", 443), b"e", ""),
        ("https://e:80", ("https", "e", 80), b"e:80", ""),
        ("http://e/a/b/", ("http", "e", 80), b"e", "/a/b"),
        ("http://[fd00::1]:8000", ("http", "fd00::1", 8000), b"[fd00::1]:8000", ""),
        ("http://[FD00:0::0:1]:8000", ("http", "fd00::1", 8000), b"[fd00::1]:8000", ""),
        ("http://[::1]", ("http", "::1", 80), b"[::1]", ""),
        ("http://[fe80::1%eth0]:8000", ("http", "fe80::1%eth0", 8000), b"[fe80::1]:8000", ""),
    ],
)
def test_row_18_urls_are_taken_apart(
    url: str, endpoint: tuple[str, str, int], authority: bytes, path: str
) -> None:
    """vllm-router#96, sglang#25416: an IPv6 address is bracketed in Host and bare when dialled."""
    base = base_url(url)
    assert base.endpoint == Endpoint(*endpoint)
    assert (base.authority, base.path) == (authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "e:8000",
        "ftp://e",
        "http://",
        "http://u:p@e",
        "http://e?q",
        "http://e#f",
        "http://e:99999",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|host|base|[Pp]ort"):
        base_url(url)


# --- The deadline that moves -----------------------------------------------------------------------


class Timers:
    """Stands for an event loop: remembers what it is to call, and when."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.pending: list[Timer] = []
        self.made = 0

    def call_later(self, delay: float, callback: object) -> "Timer":
        self.made += 1
        timer = Timer(self._clock.now() + delay, callback, self.pending)
        self.pending.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        for timer in [one for one in self.pending if one.at <= self._clock.now()]:
            self.pending.remove(timer)
            timer.callback()  # type: ignore[operator]


class Timer:
    def __init__(self, at: float, callback: object, pending: "list[Timer]") -> None:
        self.at = at
        self.callback = callback
        self._pending = pending

    def cancel(self) -> None:
        self._pending.remove(self)


def moving() -> tuple[MovingDeadline, Timers, list[float]]:
    clock = FakeClock(0.0)
    timers = Timers(clock)
    expired: list[float] = []
    deadline = MovingDeadline(
        timers,  # type: ignore[arg-type]
        clock=clock,
        expired=lambda: expired.append(clock.now()),
    )
    return deadline, timers, expired


def test_a_deadline_expires_once_at_the_moment_set_last() -> None:
    deadline, timers, expired = moving()
    deadline.set(4)
    timers.advance(3)
    deadline.set(4)
    timers.advance(1)
    assert expired == []
    timers.advance(3)
    assert expired == [7]
    timers.advance(100)
    assert expired == [7]
    assert timers.pending == []


def test_a_deadline_may_come_nearer() -> None:
    deadline, timers, expired = moving()
    deadline.set(1800)
    deadline.set(4)
    assert len(timers.pending) == 1
    timers.advance(4)
    assert expired == [4]


def test_moving_a_deadline_away_does_not_touch_the_loop() -> None:
    deadline, timers, expired = moving()
    for _ in range(1000):
        deadline.set(1800)  # a request
        timers.advance(0.001)
        deadline.set(4)  # idle again
        timers.advance(0.001)
    assert expired == []
    assert timers.made < 10


def test_a_cleared_deadline_does_not_expire() -> None:
    deadline, timers, expired = moving()
    deadline.set(4)
    deadline.clear()
    timers.advance(10)
    assert expired == []
    deadline.set(4)
    deadline.cancel()
    assert timers.pending == []
    timers.advance(10)
    assert expired == []


@pytest.mark.parametrize("space", [b" ", b"   "])
def test_spaces_behind_a_coding_mean_nothing(space: bytes) -> None:
    framed = framing()
    framed.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked" + space + b"\r\n\r\n")
    framed.feed(b"2\r\nok\r\n0\r\n\r\n")
    assert framed.complete
    assert framed.take() == b"ok"


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"5\r\nhello\r\n", 5),
        (b"5\r\nhello\r\n5\r\nhello\r\n", 10),
        (b"005\r\nhello\r\nA\r\n0123456789\r\n1\r\nx\r\n", 16),
        (b"", 0),
        (b"0\r\n\r\n", 0),
        (b"5\r\nhello\r\n0\r\n\r\n", 0),
        (b"5\r\nhello\r\n5\r\nhel", 0),
        (b"5\r\nhello\r\n5", 0),
        (b"5\r\nhello\r", 0),
        (b"5\r\nhelloo\r\n", 0),
        (b"5;x\r\nhello\r\n", 0),
        (b"6\r\nhello\r\n\r\n", 0),
    ],
)
def test_whole_chunks_are_found_without_a_parser(data: bytes, size: int) -> None:
    assert whole_chunks(data) == size
