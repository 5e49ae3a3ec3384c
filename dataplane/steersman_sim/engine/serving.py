"""Carrying a request for tokens through the core, buffered or streamed.

Whatever ends the handler early (the client went away, the connection was reset) aborts the
sequences in the scheduler, as both engines do.
"""

import asyncio
from collections.abc import Callable, Iterable

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import EngineCore, Job
from steersman_sim.engine.faults import Fault, When
from steersman_sim.engine.replies import EventStream
from steersman_sim.engine.sequence import Sequence, Sink


class Collector:
    """A sink that waits for the end of a number of sequences."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def progress(self, sequence: Sequence) -> None:
        """Nothing to do before the end."""

    def finished(self, sequence: Sequence) -> None:
        """Count."""
        self._left -= 1
        if self._left == 0 and not self.done.done():
            self.done.set_result(None)


class Emitter(Collector):
    """A sink that lets a dialect write chunks as tokens come.

    ``write(sequence, final)`` is called between steps; while the client does not read, only final
    chunks are written, and the next one carries what was held back.
    """

    def __init__(
        self, count: int, *, stream: EventStream, write: Callable[[Sequence, bool], None]
    ) -> None:
        super().__init__(count)
        self._stream = stream
        self._write = write

    def progress(self, sequence: Sequence) -> None:
        """Write what is new."""
        if not self._stream.clogged:
            self._write(sequence, False)

    def finished(self, sequence: Sequence) -> None:
        """Write the last chunk."""
        self._write(sequence, True)
        super().finished(sequence)


class _Struck:
    """A sink in front of another one: a fault strikes at an output length."""

    def __init__(self, sink: Sink, *, fault: Fault, call: Call) -> None:
        self._sink = sink
        self._fault = fault
        self._call = call
        self._struck = False

    def _strike(self, sequence: Sequence) -> bool:
        if not self._struck and len(sequence.output) >= self._fault.after_tokens:
            self._struck = True
            if self._fault.die:
                self._call.core.crash("fault after tokens")
            elif self._fault.drop:
                self._call.reset()
        return self._struck

    def progress(self, sequence: Sequence) -> None:
        if not self._strike(sequence):
            self._sink.progress(sequence)

    def finished(self, sequence: Sequence) -> None:
        if not self._strike(sequence):
            self._sink.finished(sequence)


async def run(
    call: Call, jobs: Iterable[Job], *, collector: Collector, core: EngineCore
) -> list[Sequence]:
    """Run sequences to their end.

    Raises:
        ValueError: a prompt can never fit into the KV pool.
        asyncio.CancelledError: the client went away; the sequences are aborted.
    """
    fault = call.fault
    sink: Sink = collector
    if fault is not None and fault.when is When.TOKENS:
        sink = _Struck(collector, fault=fault, call=call)
    sequences: list[Sequence] = []
    core.in_flight += 1
    try:
        async with core.admitted():
            for job in jobs:
                sequence = core.sequence(job, sink=sink)
                core.submit(sequence, rank=job.rank)
                sequences.append(sequence)
                call.entry.follow(sequence)
            await collector.done
    except BaseException:
        mine = set(map(id, sequences))
        core.abort(lambda sequence: id(sequence) in mine)
        raise
    finally:
        core.in_flight -= 1
        core.watch.notify()
    return sequences
