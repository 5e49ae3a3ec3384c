"""Logs: one line for each event, as text or as JSON, and one for each request if that is on.

Nothing secret gets in: of a request there is the path without its query, never a header or a body,
and the configured keys are hidden wherever they turn up. Control characters are escaped, so that a
client cannot begin a line of its own.

Writing happens in a thread behind a bounded queue, because the reader of standard error may be slow
and the event loop must not wait for it. When the queue is full, records are dropped and counted.
"""

import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

import msgspec

from steersman_proxy.exchange.messages import ExchangeRecord
from steersman_proxy.settings import ProxySettings

ROOT = "steersman"
"""All loggers of the proxy are below this one."""

QUEUE_SIZE = 20_000
"""Records that may wait to be written."""

CLOSING = 2.0
"""Seconds that a shutdown waits for what is queued to be written."""

HIDDEN = "***"
_SHORTEST_SECRET = 4
_LONGEST_TEXT = 1024

# C0, DEL and C1, and the separators that some viewers take for line ends.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_ESCAPES |= {0x2028: "\\u2028", 0x2029: "\\u2029", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}


def clean(text: str) -> str:
    """``text`` on one line and of bounded length."""
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "..."
    return text if text.isprintable() else text.translate(_ESCAPES)


class _Formatter(logging.Formatter):
    """What both formats share: the fields of a request, and hidden secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__()
        # A very short key would hide half of every line; it protects nothing anyway.
        self._secrets = sorted(
            {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True
        )

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def trace(self, record: logging.LogRecord) -> str | None:
        """The traceback of a record, with its own line breaks."""
        if record.exc_info and record.exc_info[0] is not None:
            return self.formatException(record.exc_info)
        return None


class TextFormatter(_Formatter):
    """``2026-01-31T12:00:00.123Z INFO steersman.access message name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_stamp(record.created), record.levelname, record.name, clean(record.getMessage())]
        fields: dict[str, Any] = getattr(record, "fields", {})
        parts += [f"{name}={_word(value)}" for name, value in fields.items() if value is not None]
        trace = self.trace(record)
        if trace is not None:
            # A traceback is ours to write; it stays readable, with each line indented.
            parts[-1] += "\n  " + "\n  ".join(map(clean, trace.splitlines()))
        return self.hide(" ".join(parts))


class JsonFormatter(_Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(record.getMessage()),
        }
        fields: dict[str, Any] = getattr(record, "fields", {})
        for name, value in fields.items():
            line[name] = clean(value) if isinstance(value, str) else value
        trace = self.trace(record)
        if trace is not None:
            line["traceback"] = trace
        return self.hide(msgspec.json.encode(line).decode())


def _stamp(created: float) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{seconds}.{int(created % 1 * 1000):03d}Z"


def _word(value: Any) -> str:
    """A value of the text format; quoted if it would not read as one word."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = clean(value) if isinstance(value, str) else str(value)
    return f'"{text}"' if not text or " " in text or "=" in text else text


class _Queue(logging.handlers.QueueHandler):
    """Hands records to the writing thread, or drops them; never waits and never raises."""

    def __init__(self, records: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(records)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # The message is made here: its arguments may change before the thread gets to it.
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class _Writer(logging.handlers.QueueListener):
    """The writing thread. Its end is waited for, but not for ever: standard error may be stuck."""

    queue: "queue.Queue[Any]"

    def enqueue_sentinel(self) -> None:
        with suppress(queue.Full):
            self.queue.put(None, timeout=CLOSING)

    def stop(self) -> None:
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(CLOSING)
            self._thread = None


class Logs:
    """The logging of a process, from :meth:`start` until :meth:`close`."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        stream: TextIO | None = None,
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        secrets = [*settings.api_keys, *settings.engine_keys.values()]
        if settings.admin_key is not None:
            secrets.append(settings.admin_key)
        kind = JsonFormatter if settings.log_format == "json" else TextFormatter
        writer = logging.StreamHandler(sys.stderr if stream is None else stream)
        writer.setFormatter(kind(secrets))
        records: queue.Queue[logging.LogRecord] = queue.Queue(queue_size)
        self._queue = _Queue(records)
        self._listener = _Writer(records, writer)
        self._level = settings.log_level.upper()
        self.access = AccessLog() if settings.access_log else None

    @property
    def dropped(self) -> int:
        """Records that were not written because the writer could not keep up."""
        return self._queue.dropped

    def start(self) -> None:
        """Take over the proxy's loggers."""
        root = logging.getLogger(ROOT)
        root.setLevel(self._level)
        root.propagate = False
        root.addHandler(self._queue)
        self._listener.start()

    def close(self) -> None:
        """Write what is queued and give the loggers back."""
        root = logging.getLogger(ROOT)
        root.removeHandler(self._queue)
        root.propagate = True
        root.setLevel(logging.NOTSET)
        self._listener.stop()


class AccessLog:
    """Writes one line for each exchange, at level INFO."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(f"{ROOT}.access")

    def finished(self, record: ExchangeRecord) -> None:
        """An exchange is over."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info("request", extra={"fields": access_fields(record)})


def access_fields(record: ExchangeRecord) -> dict[str, Any]:
    """What the line of a request tells; durations in milliseconds, sizes in bytes."""
    first = record.time_to_first_byte
    return {
        "request_id": record.request_id[:128],
        "method": record.method[:16],
        "path": record.path.partition("?")[0],
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome.value,
        "error": None if record.error is None else record.error.code,
        "pool": record.pool,
        "model": record.model,
        "engine": record.engine_id,
        "engine_url": record.engine_url,
        "weight_version": record.weight_version,
        "mixed": record.mixed,
        "streaming": record.streaming,
        "attempts": record.attempts,
        "held_ms": round(record.held * 1000, 3),
        "ttft_ms": None if first is None else round(first * 1000, 3),
        "duration_ms": round(record.duration * 1000, 3),
        "request_bytes": record.request_bytes,
        "answer_bytes": record.answer_bytes,
    }
