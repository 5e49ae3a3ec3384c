"""The engine and the load generator, over real sockets: what they send, and what they notice."""

import http.client
import json
import re
import subprocess
import sys

import pytest

from steersman_proxy.stamping.reports import read_report
from tests.bench.proxies.pair import Engines, LoadFailedError, NoCompilerError, Pair, Work

BRIEF = Work(connections=4, seconds=0.15, warm_up=0.05)
STREAMS = Work(connections=4, seconds=0.2, warm_up=0.1, chunks=5, interval_us=5_000)


def ask(port: int, content: str, **more) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = {"model": "bench-model", "messages": [{"role": "user", "content": content}], **more}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


# ------------------------------------------------------------------------------------ the engine


@pytest.mark.parametrize("size", [1024, 65_536])
def test_an_answer_has_the_length_that_was_asked_for_and_a_version(
    engines: Engines, size: int
) -> None:
    for port in engines.ports:
        answer, body = ask(port, f"answer={size} chunks=0 interval=0;")
        assert (answer.status, len(body)) == (200, size)
        assert json.loads(body)["choices"][0]["finish_reason"] == "stop"
        # What the proxy reads for its stamp, so that it does that work in the benchmark.
        assert read_report(body).current == engines.weight_version


def test_a_stream_has_the_chunks_that_were_asked_for_and_an_end(engines: Engines) -> None:
    answer, body = ask(engines.ports[0], "answer=0 chunks=3 interval=1000;", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end, rest = body.split(b"\n\n")
    assert (end, rest) == (b"data: [DONE]", b"")
    tokens = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [token["choices"][0]["delta"]["content"] for token in tokens] == [
        " t000000",
        " t000001",
        " t000002",
    ]
    assert len({len(event) for event in events}) == 1


def test_requests_on_one_connection_are_answered_in_order(engines: Engines) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engines.ports[1], timeout=10)
    connection.connect()
    request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
    stream, piece = b"answer=1 chunks=2 interval=1000", b"answer=2000 chunks=0 interval=0"
    both = b"".join(request % (len(one), one) for one in (stream, piece))
    half = len(both) // 3
    connection.sock.sendall(both[:half])
    connection.sock.sendall(both[half:])
    received = b""
    while received.count(b"HTTP/1.1 200 OK") < 2 or not received.endswith(b"}}"):
        received += connection.sock.recv(65_536)
    first, _, second = received.rpartition(b"HTTP/1.1 200 OK")
    assert first.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"content-length: 2000\r\n" in second
    connection.close()


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/get_model_info", "/server_info?x=1"])
def test_what_gateways_ask_of_an_engine_is_answered(engines: Engines, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engines.ports[0], timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())
    connection.request("GET", "/nothing")
    assert connection.getresponse().status == 404
    connection.close()


def test_a_chunked_request_is_refused_rather_than_misread(engines: Engines) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engines.ports[0], timeout=10)
    connection.request("POST", "/", iter([b"x"]), encode_chunked=True)
    assert connection.getresponse().status == 400
    connection.close()


def test_the_engine_ends_with_whoever_started_it(pair: Pair) -> None:
    program = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.argv[1], '0'], stdout=sys.stdout, stdin=subprocess.DEVNULL); "
        "p.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, pair._engine], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert json.loads(parent.stdout.readline())["ports"]
    parent.kill()
    parent.wait()
    # The engine holds the other end of the pipe: this returns once it has ended too.
    assert parent.stdout.read() == ""
    parent.stdout.close()


# --------------------------------------------------------------------------- the load generator


@pytest.mark.parametrize("work", [BRIEF, STREAMS], ids=["buffered", "streams"])
def test_the_pair_agrees(pair: Pair, engines: Engines, work: Work) -> None:
    counted = pair.load(work, engines.ports[0], engines=[engines.pid])
    assert counted["errors"] == {}
    assert counted["answers"] > 0
    assert counted["opened"] == 4
    assert counted["cpu_us"]["engine"] > 0
    assert counted["cpu_us"]["proxy"] == 0
    # Those whose ends fell into the window may have begun before it.
    if work.chunks:
        assert counted["chunks"] >= counted["answers"]


def test_large_bodies_pass_whole(pair: Pair, engines: Engines) -> None:
    work = Work(connections=3, seconds=0.15, warm_up=0.05, body_bytes=300_000, answer_bytes=900_000)
    counted = pair.load(work, engines.ports[0])
    assert counted["errors"] == {}
    assert counted["answers"] > 0


def test_requests_look_like_those_of_a_client_and_differ(pair: Pair, parrot) -> None:
    body = b"{" + b" " * 1022 + b"}"
    server = parrot(b"HTTP/1.1 200 OK\r\ncontent-length: 1024\r\n\r\n" + body)
    pair.load(Work(connections=1, seconds=0.15, warm_up=0.05), server.port, key="sk-1")
    heads = [head.decode() for head in server.heads]
    assert len(heads) > 8
    for head in heads:
        names = re.findall(r"^([\w-]+): ", head, re.MULTILINE)
        assert len(names) >= 10
        assert {"Host", "User-Agent", "Accept", "Accept-Encoding", "Content-Type"} <= set(names)
        assert "Authorization: Bearer sk-1\r\n" in head
    assert len(set(heads)) == len(heads)
    lengths = re.findall(r"^Content-Length: (\d+)", "".join(heads), re.MULTILINE)
    assert lengths[0] != lengths[1]
    sessions = re.findall(r"^X-Session-ID: (\S+)", "".join(heads), re.MULTILINE)
    assert sessions[0] == sessions[7] != sessions[8]


HEAD = b"HTTP/1.1 200 OK\r\n"
EVENTS = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("kind", "work", "answer"),
    [
        ("status", BRIEF, b"HTTP/1.1 503 Busy\r\ncontent-length: 1024\r\n\r\n{" + b"x" * 1023),
        ("length", BRIEF, HEAD + b"content-length: 1023\r\n\r\n{" + b"x" * 1022),
        ("framing", BRIEF, HEAD + b"content-length: 1024\r\n\r\n<" + b"x" * 1023),
        ("framing", BRIEF, HEAD + b"content-length: 1024\r\n\r\n{" + b"x" * 1024),
        ("framing", BRIEF, HEAD + b"\r\n{}"),
        ("framing", BRIEF, b"SSH-2.0\r\n\r\n"),
        ("framing", STREAMS, HEAD + b"content-length: 1024\r\n\r\n{" + b"x" * 1023),
        ("chunks", STREAMS, HEAD + EVENTS + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
        ("chunks", STREAMS, HEAD + EVENTS + b"a\r\ndata: {}\n\n\r\n0\r\n\r\n"),
    ],
)
def test_a_wrong_answer_is_noticed(
    pair: Pair, parrot, kind: str, work: Work, answer: bytes
) -> None:
    server = parrot(answer)
    one_at_a_time = Work(**{**vars(work), "connections": 1})
    try:
        wrong = pair.load(one_at_a_time, server.port)["errors"]
    except LoadFailedError as why:  # nothing was ever right, so there is no figure
        wrong = re.findall(r"^load: (\w+):", str(why), re.MULTILINE)
    assert set(wrong) == {kind}


def test_a_connection_that_breaks_off_is_noticed(pair: Pair, parrot) -> None:
    server = parrot(HEAD + b"content-length: 1024\r\n\r\n{", closes=True)
    with pytest.raises(LoadFailedError, match="closed"):
        pair.load(Work(connections=1, seconds=0.15, warm_up=0.05), server.port)


def test_nobody_listening_is_noticed(pair: Pair, free_port: int) -> None:
    with pytest.raises(LoadFailedError, match="connect"):
        pair.load(BRIEF, free_port)


def test_a_proxy_that_died_gives_no_figure(pair: Pair, engines: Engines) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(LoadFailedError, match="is gone"):
        pair.load(BRIEF, engines.ports[0], proxy=[gone.pid])


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match="apt-get install gcc"):
        Pair(tmp_path, core=None)
