"""One example, run through one adapter: what the engine received and what the client read."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from steersman_proxy.exchange.messages import ExchangeRecord
from steersman_proxy.settings import AdapterKind
from tests.fuzz.example import KEY, Answer, Example
from tests.fuzz.memory import HOST, PORT, URL, MemoryLoop, MemoryTransport, Network
from tests.fuzz.strict import Received, Unframed, read_request
from tests.http.adapter import AdapterRig

AUTHORITY = f"{HOST}:{PORT}".encode()

QUIET = 16
"""Turns of the loop without any movement after which nothing will move any more by itself."""

BODY_LIMIT = 200_000
"""``max_body_bytes`` of the proxy under test."""

SETTINGS: dict[str, dict[str, Any]] = {
    "rl": {},
    "relay": {"rl_enabled": False},
    "keys": {"api_keys": (KEY,)},
}


class Record(NamedTuple):
    """What the proxy wrote down of one exchange, without durations."""

    method: str
    route: str
    path: str
    status: int | None
    outcome: str
    error: str | None
    version: str | None
    streaming: bool
    mixed: bool
    request_bytes: int
    attempts: int
    request_id: str


class Observed(NamedTuple):
    """What the world saw of one example."""

    requests: tuple[Received, ...]
    """What the engine received, over all its connections."""
    answers: bytes
    """All bytes that the client read."""
    ended: str
    """How the proxy ended the connection while the client was there: ``fin``, ``rst``, ``open``."""
    records: tuple[Record, ...]
    deaf: bool
    """Whether the proxy had stopped reading, so that it did not notice the client's leaving."""
    faults: tuple[str, ...]
    """What must never happen: exceptions, leaks, counts that are not 0, pipelining to engines."""


class Link:
    """The engine's end of one connection, over whatever network."""

    def __init__(self, engine: "Engine", wire: Any) -> None:
        self._engine = engine
        self.wire = wire
        """Takes ``deliver``, ``deliver_eof`` and ``deliver_reset``."""
        self._buffer = b""
        self._answering = False
        self.over = False
        """Whether either end has ended it."""

    def data(self, data: bytes) -> None:
        if self.over:
            return
        engine = self._engine
        self._buffer += data
        if self._answering:
            engine.faults.append(f"bytes reach the engine while it answers: {data[:200]!r}")
            return
        try:
            read = read_request(self._buffer, authority=engine.authority)
        except Unframed as error:
            engine.faults.append(f"the engine cannot read its request: {error}")
            self.over = True
            return
        if read is None:
            return
        received, self._buffer = read
        if self._buffer:
            engine.faults.append(f"bytes reach the engine after its request: {self._buffer!r}")
        answer = engine.answer_to(received)
        engine.received.append(received)
        self._answering = True
        self._write(answer, 0)

    def ended(self, *, reset: bool) -> None:
        if self._buffer and not self.over:
            self._engine.cut += 1
        self.over = True

    def _write(self, answer: Answer, index: int) -> None:
        gap = self._engine.example.gap
        while not self.over:
            if index >= len(answer.pieces):
                self._answering = False
                if answer.end != "keep":
                    self.over = True
                    (self.wire.deliver_eof if answer.end == "fin" else self.wire.deliver_reset)()
                return
            last = index == len(answer.pieces) - 1
            if last:
                # The proxy may send the next request as soon as it has this.
                self._answering = False
            self.wire.deliver(answer.pieces[index])
            index += 1
            if gap and not last:
                self._engine.later(gap, partial(self._write, answer, index))
                return


class Engine:
    """Reads strictly and answers by the example."""

    def __init__(self, loop: asyncio.AbstractEventLoop, example: Example, authority: bytes) -> None:
        self._loop = loop
        self.example = example
        self.authority = authority
        self.received: list[Received] = []
        self.faults: list[str] = []
        self.links: list[Link] = []
        self.cut = 0
        """Connections that ended within a request."""
        self.waiting = 0
        """Pieces that are still to be written."""

    def answer_to(self, received: Received) -> Answer:
        """What becomes of a request that is whole."""
        return self.example.answer(len(self.received))

    def accept(self, wire: Any) -> Link:
        link = Link(self, wire)
        self.links.append(link)
        return link

    def leave(self) -> None:
        """Close all connections that are still there."""
        for link in self.links:
            if not link.over:
                link.over = True
                link.wire.deliver_eof()

    def later(self, turns: int, then: Any) -> None:
        """Call ``then`` after so many turns of the loop."""
        self.waiting += 1

        def turn(left: int) -> None:
            if left:
                self._loop.call_soon(turn, left - 1)
            else:
                self.waiting -= 1
                then()

        self._loop.call_soon(turn, turns - 1)


class Client:
    """The client's end: keeps what it reads."""

    def __init__(self) -> None:
        self.read = bytearray()
        self.ending = "open"

    def data(self, data: bytes) -> None:
        self.read += data

    def ended(self, *, reset: bool) -> None:
        self.ending = "rst" if reset else "fin"


class Complaints(logging.Handler):
    """Everything that the proxy, aiohttp or asyncio logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r} {_where(record.exc_info[1])}"
        self.found.append(f"logged: {text}")


def _where(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"at {place}"


class World:
    """Runs examples, each through an adapter of its own; use as a context manager."""

    def __init__(self) -> None:
        self.loop = MemoryLoop()
        self.complaints = Complaints()
        self._quiet: list[tuple[logging.Logger, bool]] = []

    def __enter__(self) -> "World":
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._failed)
        for name in ("steersman", "asyncio", "aiohttp"):
            logger = logging.getLogger(name)
            self._quiet.append((logger, logger.propagate))
            logger.propagate = False
            logger.addHandler(self.complaints)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, propagate in self._quiet:
            logger.propagate = propagate
            logger.removeHandler(self.complaints)
        asyncio.set_event_loop(None)
        self.loop.close()

    def run(self, example: Example, kind: AdapterKind) -> Observed:
        """What came of the example."""
        return self.loop.run_until_complete(self._run(example, kind))

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "" if error is None else _where(error)
        self.complaints.found.append(f"in the loop: {context.get('message')} {error!r} {where}")

    async def _run(self, example: Example, kind: AdapterKind) -> Observed:
        self.complaints.found.clear()
        network = self.loop.network = Network()
        engine = Engine(self.loop, example, AUTHORITY)
        network.accept = engine.accept
        tasks = len(asyncio.all_tasks())
        rig = rig_of(example, kind, URL)
        client = Client()
        transport = MemoryTransport(self.loop, network, rig.adapter.protocol())
        transport.peer = client
        transport.window = example.take or None
        transport.begin()
        for piece in example.client:
            transport.deliver(piece)
            await turns(example.gap)
        leave = (
            transport.deliver_eof if example.leave.startswith("fin") else transport.deliver_reset
        )
        if example.leaves_early:
            leave()
        taking = partial(transport.open_window, example.take or None)
        await settle(network, engine, taking=taking)
        ended, answers = client.ending, bytes(client.read)
        leave()
        await settle(network, engine, taking=taking)
        deaf = not transport.is_reading() and client.ending == "open"
        faults: list[str] = []
        if not deaf:  # else it learns of the client's leaving only when it reads again
            faults += left_over(rig)
        received = tuple(engine.received)
        engine.leave()
        await settle(network, engine)
        if not deaf and rig.upstream.open:
            faults.append(f"{rig.upstream.open} connections to the engine are left")
        faults += await close(rig)
        await settle(network, engine)
        if left := len(asyncio.all_tasks()) - tasks:
            faults.append(f"{left} tasks are left")
        return Observed(
            requests=received,
            answers=answers,
            ended=ended,
            records=tuple(map(record_of, rig.recorder.records)),
            deaf=deaf,
            faults=(*engine.faults, *faults, *self.complaints.found),
        )


def rig_of(example: Example, kind: AdapterKind, url: str) -> AdapterRig:
    """An adapter for one example, with an engine at that URL."""
    settings = {"adapter": kind, "max_body_bytes": BODY_LIMIT, **SETTINGS[example.setup]}
    return AdapterRig((url,), None, settings)


async def close(rig: AdapterRig) -> list[str]:
    """Close all; what is still there then."""
    await rig.adapter.close()
    await rig.upstream.close()
    rig.hold_driver.close()
    return left_over(rig)


async def turns(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle(
    network: Network,
    engine: Engine,
    *,
    enough: int = QUIET,
    taking: Callable[[], None] = lambda: None,
) -> None:
    """Let the loop turn until nothing has moved for so many turns; ``taking`` is called at each."""
    quiet, moves = 0, network.moves
    while quiet < enough:
        taking()
        await asyncio.sleep(0)
        quiet = quiet + 1 if moves == network.moves and not engine.waiting else 0
        moves = network.moves


def left_over(rig: AdapterRig) -> list[str]:
    """What is still there of the client's connection, once it is gone."""
    counts = {
        "requests in flight": rig.in_flight,
        "requests in the hold queue": rig.hold.depth("p"),
        "requests running": rig.adapter.running,
        "connections of clients": len(list(rig.adapter.connections)),
    }
    return [f"{count} {what} are left" for what, count in counts.items() if count]


def record_of(record: ExchangeRecord) -> Record:
    return Record(
        method=record.method,
        route=record.route,
        path=record.path,
        status=record.status,
        outcome=record.outcome.value,
        error=None if record.error is None else record.error.code,
        version=record.weight_version,
        streaming=record.streaming,
        mixed=record.mixed,
        request_bytes=record.request_bytes,
        attempts=record.attempts,
        request_id=record.request_id,
    )
