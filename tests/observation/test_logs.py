"""One line a request, and nothing in it that should not be there."""

import io
import json
import logging
import threading

import pytest

from steersman.errors import HoldTimeout
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.logs import Logs, access_fields, clean
from steersman_proxy.settings import ProxySettings
from tests.observation.support import record

KEYS = {
    "api_keys": ("client-key-0", "cli"),
    "admin_key": "admin-key-1",
    "engine_keys": {"main": "engine-key-2"},
}


def written(log_format, *, write, **settings):
    """The lines that ``write(logs)`` leads to."""
    stream = io.StringIO()
    logs = Logs(ProxySettings(log_format=log_format, **settings), stream=stream)
    logs.start()
    try:
        write(logs)
    finally:
        logs.close()
    return stream.getvalue().splitlines()


def test_json_has_all_fields_of_a_request():
    done = record(
        path="/generate",
        held=1.5,
        duration=2.0,
        time_to_first_byte=1.75,
        streaming=True,
        outcome=Outcome.REJECTED,
        error=HoldTimeout("x"),
        status=503,
    )
    (line,) = written("json", write=lambda logs: logs.access.finished(done))
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "logger": "steersman.access",
        "message": "request",
        "request_id": "r1",
        "method": "POST",
        "path": "/generate",
        "route": "/generate",
        "status": 503,
        "outcome": "rejected",
        "error": "hold_timeout",
        "pool": "main",
        "model": "main-model",
        "engine": "e1",
        "engine_url": "http://e1.test:30000",
        "weight_version": "7",
        "mixed": False,
        "streaming": True,
        "attempts": 1,
        "held_ms": 1500.0,
        "ttft_ms": 1750.0,
        "duration_ms": 2000.0,
        "request_bytes": 10,
        "answer_bytes": 20,
    }


def test_text_is_one_line_of_names_and_values():
    done = record(request_id="a b", engine_id=None, streaming=True)
    (line,) = written("text", write=lambda logs: logs.access.finished(done))
    assert " INFO steersman.access request " in line
    assert 'request_id="a b"' in line
    assert "streaming=true" in line
    assert "status=200" in line
    assert "engine=" not in line
    assert "error=" not in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_begin_a_line_of_its_own(log_format):
    nasty = "x\r\nINFO forged\x1b[2J\x00\x85\u2028end"
    done = record(request_id=nasty, path="/v1/models/" + nasty)
    lines = written(log_format, write=lambda logs: logs.access.finished(done))
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert "\\x1b" in lines[0]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_queries_and_keys_are_not_written(log_format):
    def write(logs):
        logs.access.finished(record(path="/generate?api_key=query-secret"))
        logger = logging.getLogger("steersman.test")
        logger.warning("sent %s with %s", "Bearer engine-key-2", {"k": "client-key-0"})
        try:
            raise ValueError("admin-key-1 is wrong")
        except ValueError:
            logger.exception("failed")

    text = "\n".join(written(log_format, write=write, **KEYS))
    for secret in ("query-secret", "engine-key-2", "client-key-0", "admin-key-1"):
        assert secret not in text
    assert "Bearer ***" in text
    assert "ValueError: *** is wrong" in text
    assert "client_gone" not in text
    assert "steersman.test" in text, "a key of three letters is not looked for"


def test_the_access_log_can_be_switched_off():
    logs = Logs(ProxySettings(access_log=False), stream=io.StringIO())
    assert logs.access is None
    assert Logs(ProxySettings(), stream=io.StringIO()).access is not None


def test_levels_hold_for_the_access_log_too():
    lines = written("text", write=lambda logs: logs.access.finished(record()), log_level="warning")
    assert lines == []


def test_a_writer_that_hangs_costs_records_and_never_time():
    """The loop goes on; what the queue cannot take is counted."""
    inside, go_on = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text):
            inside.set()
            go_on.wait()
            return super().write(text)

    stream = Stuck()
    logs = Logs(ProxySettings(), stream=stream, queue_size=10)
    logs.start()
    try:
        logging.getLogger("steersman.test").info("first")
        inside.wait()
        for number in range(25):
            logs.access.finished(record(request_id=f"r{number}"))
        assert logs.dropped == 15
    finally:
        go_on.set()
        logs.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert "request_id=r9" in lines[-1]


def test_closing_gives_the_loggers_back():
    root = logging.getLogger("steersman")
    before = (root.level, root.propagate, list(root.handlers))
    written("text", write=lambda _: None)
    assert (root.level, root.propagate, list(root.handlers)) == before


def test_texts_are_bounded():
    assert len(clean("x" * 10_000)) < 1100
    assert len(access_fields(record(request_id="i" * 9999))["request_id"]) == 128
