"""What both engines have in common from one start to the next: ranks, sequences, weights.

A core lives for one boot. A restart makes a new one, so nothing survives it by accident.
"""

import abc
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call, Route
from steersman_sim.engine.config import EngineConfig
from steersman_sim.engine.pace import Pace
from steersman_sim.engine.rank import Operation, Rank
from steersman_sim.engine.sequence import Sampling, Sequence, Sink
from steersman_sim.engine.watch import Watch


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence that a request asks for, after its dialect was parsed."""

    rid: str
    prompt: list[int]
    sampling: Sampling
    want_logprobs: bool = False
    salt: str = ""
    rank: int | None = None


class EngineCore(abc.ABC):
    """One boot of an engine."""

    deferred_abort = False
    """Whether a running sequence that is aborted still takes its next step."""

    def __init__(
        self, config: EngineConfig, *, boot: int, watch: Watch, die: Callable[[str], None]
    ) -> None:
        """``die(reason)`` ends the engine as a crash would, soon but not at once."""
        self.config = config
        self.boot = boot
        self.watch = watch
        self.pace = Pace(config.speed)
        self.started = time.time()
        self.model = config.model
        self.model_path = config.model
        self.ending = False
        """Whether this boot is coming to its end."""
        self.in_flight = 0
        """Requests for tokens in this process, waiting ones included."""
        self.ranks = [
            Rank(
                number,
                config=config,
                pace=self.pace,
                deferred_abort=self.deferred_abort,
                changed=watch.notify,
            )
            for number in range(config.dp_size)
        ]
        self._die = die
        self._random = Random(f"{config.seed}/{boot}")
        self._turn = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- What a dialect adds ---------------------------------------------------------------------

    @abc.abstractmethod
    def authorize(self, call: Call, route: Route) -> web.Response | None:
        """The refusal of a call whose key is missing or wrong."""

    @abc.abstractmethod
    def invalid(self, message: str) -> web.Response:
        """The answer to a body that cannot be understood."""

    @abc.abstractmethod
    def failed(self, error: Exception) -> web.Response:
        """The answer when a handler raised."""

    @abc.abstractmethod
    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Wait at the engine's own gate, if it has one; hold it while the request runs."""

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """The state that ``GET /_sim/state`` shows beyond that of the ranks."""

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        for rank in self.ranks:
            rank.start()

    async def stop(self) -> None:
        """Stop at once. What runs is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for rank in self.ranks:
            await rank.stop()

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run something that ends at the latest with this boot."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def crash(self, reason: str) -> None:
        """End as a crash does: soon, resetting all connections."""
        self._die(reason)

    async def die(self, reason: str) -> NoReturn:
        """Crash. The caller waits for the end that resets its own connection."""
        self.crash(reason)
        await asyncio.Event().wait()
        raise AssertionError("an engine that dies does not go on")

    # --- Sequences -------------------------------------------------------------------------------

    def sequence(self, job: Job, *, sink: Sink) -> Sequence:
        """Make a sequence; nothing runs yet."""
        sampling = job.sampling
        if sampling.greedy or self.config.deterministic:
            nonce = 0
        elif sampling.seed is not None:
            nonce = sampling.seed + 1
        else:
            nonce = self._random.getrandbits(62) + 1
        return Sequence(
            job.rid,
            prompt=job.prompt,
            sampling=sampling,
            sink=sink,
            nonce=nonce,
            salt=job.salt,
            want_logprobs=job.want_logprobs,
        )

    def submit(self, sequence: Sequence, *, rank: int | None = None) -> None:
        """Hand a sequence to a rank: the one asked for, else the next that has least to do.

        Raises:
            ValueError: the prompt can never fit into the KV pool.
        """
        self.rank_for(rank).submit(sequence)

    def rank_for(self, wanted: int | None) -> Rank:
        """The rank of a new request."""
        ranks = self.ranks
        if wanted is not None:
            return ranks[wanted]
        if len(ranks) == 1:
            return ranks[0]
        self._turn += 1
        order = ranks[self._turn % len(ranks) :] + ranks[: self._turn % len(ranks)]
        return min(order, key=lambda rank: rank.scheduler.unfinished)

    def abort(self, matches: Callable[[Sequence], bool]) -> int:
        """Abort what matches on all ranks; returns how many sequences that were."""
        return sum(rank.abort(matches) for rank in self.ranks)

    @property
    def unfinished(self) -> int:
        """Sequences in the schedulers."""
        return sum(rank.scheduler.unfinished for rank in self.ranks)

    # --- Operations ------------------------------------------------------------------------------

    async def on_all_ranks(self, operation: Operation) -> None:
        """Carry out an operation on every rank, between two of its steps."""
        await asyncio.gather(*(rank.execute(operation) for rank in self.ranks))


@asynccontextmanager
async def no_gate() -> AsyncIterator[None]:
    """The gate of an engine that has none."""
    yield
