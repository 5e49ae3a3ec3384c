"""One data-parallel rank at work: the loop that drives a scheduler through engine time.

Between two steps the rank carries out control operations, as the event loops of both engines do.
An operation therefore never sees a half-finished step, and while one takes its time nothing is
generated on that rank.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from steersman_sim.engine.config import EngineConfig, Runtime
from steersman_sim.engine.load import LoadSnapshot, snapshot_of
from steersman_sim.engine.pace import Metronome, Pace
from steersman_sim.engine.scheduler import Hold, Scheduler
from steersman_sim.engine.sequence import Sequence
from steersman_sim.engine.weights import RankWeights

Operation = Callable[["Rank"], Awaitable[None]]


class Rank:
    """A scheduler with its weights, its load snapshot and the task that drives it."""

    def __init__(
        self,
        number: int,
        *,
        config: EngineConfig,
        pace: Pace,
        deferred_abort: bool,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called after everything that another part may be waiting for."""
        self.number = number
        self.weights = RankWeights(label=config.weight_version)
        self.scheduler = Scheduler(config, weights=self.weights, deferred_abort=deferred_abort)
        self.pace = pace
        self.load = LoadSnapshot(dp_rank=number)
        """What the scheduler last published; all zeros until it did."""
        self.spoke_at = 0.0
        """Monotonic seconds at which the scheduler last had output."""
        self.steps = 0
        self.operating = False
        """Whether a control operation is under way."""
        self._config = config
        self._changed = changed
        self._operations: deque[tuple[Operation, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._granted: list[asyncio.Future[None]] = []
        self._steps_since_load = 0
        self._task: asyncio.Task[None] | None = None

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self.publish_load()
        self._task = asyncio.create_task(self._work(), name=f"rank-{self.number}")

    async def stop(self) -> None:
        """Stop at once, wherever the loop is. Operations still queued are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for _, future in self._operations:
            future.cancel()
        self._operations.clear()
        for future in self._granted:
            future.cancel()
        self._granted.clear()

    # --- From outside ----------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            ValueError: the prompt can never fit into the KV pool.
        """
        sequence.rank = self.number
        self.scheduler.submit(sequence)
        self._wake.set()
        self._changed()

    def abort(self, matches: Callable[[Sequence], bool], *, message: str = "Aborted") -> int:
        """Abort what matches; returns how many sequences that were."""
        count = self.scheduler.abort(matches, message=message)
        if count and self._config.runtime is Runtime.VLLM:
            # vLLM 0.32 takes one empty step to tell its workers, also while it is paused.
            self.publish_load()
        self._changed()
        return count

    def set_hold(self, hold: Hold) -> None:
        """Pause or resume. Call between steps, from an operation."""
        self.scheduler.hold = hold
        self._wake.set()
        self._changed()

    # --- Work ------------------------------------------------------------------------------------

    async def execute(self, operation: Operation) -> None:
        """Carry out an operation between two steps, and wait for it.

        Raises:
            Exception: whatever the operation raised.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._operations.append((operation, future))
        self._wake.set()
        await future

    async def step(self, count: int) -> None:
        """Manual mode: take ``count`` steps, waiting for work when there is none."""
        for _ in range(count):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._granted.append(granted)
            self._wake.set()
            await granted

    async def change(self, *, version: str | None, hold: str | None) -> None:
        """Make this rank differ from the others (for tests of disagreeing ranks).

        Raises:
            KeyError: ``hold`` is no name of :class:`Hold`.
        """
        wanted = None if hold is None else Hold[hold.upper()]

        async def apply(_: Rank) -> None:
            if version is not None:
                self.weights.relabel(version)
            if wanted is not None:
                self.set_hold(wanted)

        await self.execute(apply)

    def summary(self) -> dict[str, Any]:
        """What ``GET /_sim/state`` shows of a rank."""
        weights = self.weights.weights
        return {
            "hold": self.scheduler.hold.name.lower(),
            "running": self.scheduler.running,
            "waiting": len(self.scheduler.waiting),
            "steps": self.steps,
            "held_blocks": self.scheduler.pool.held,
            "evictable_blocks": self.scheduler.pool.evictable,
            "generated_tokens": self.scheduler.generated_tokens,
            "label": self.weights.label,
            "weights": {
                "revision": weights.revision,
                "version": weights.version,
                "source": weights.source,
            },
        }

    def current_load(self) -> LoadSnapshot:
        """What a reader of the load sees now.

        SGLang 0.5.23 publishes at every prefill batch, every few decode steps and on idle; not
        while its loop is paused, when a reader keeps seeing the last snapshot. vLLM 0.32 refreshes
        its gauges with every output, and not while it is paused either.
        """
        scheduler = self.scheduler
        fresh = self._config.runtime is Runtime.VLLM or not scheduler.unfinished
        if fresh and scheduler.hold is not Hold.EVERYTHING:
            self.publish_load()
        return self.load

    def publish_load(self) -> None:
        """Take a new snapshot."""
        self._steps_since_load = 0
        self.load = snapshot_of(
            self.scheduler, rank=self.number, timestamp=time.time(), before=self.load
        )

    async def _work(self) -> None:
        metronome = Metronome(self.pace)
        scheduler = self.scheduler
        while True:
            while self._operations:
                await self._operate()
                metronome.rest()
            step = scheduler.begin() if self._may_step() else None
            if step is None:
                self._wake.clear()
                if not self._operations:
                    await self._wake.wait()
                metronome.rest()
                continue
            self._changed()
            if not self._config.manual:
                await metronome.tick(step.duration)
            scheduler.end()
            self.steps += 1
            self.spoke_at = time.monotonic()
            self._steps_since_load += 1
            if step.prefill_tokens or self._steps_since_load >= self._config.load_interval_steps:
                self.publish_load()
            if self._granted:
                self._granted.pop(0).set_result(None)
            self._changed()

    def _may_step(self) -> bool:
        if not self._config.manual:
            return True
        while self._granted and self._granted[0].cancelled():
            self._granted.pop(0)
        return bool(self._granted)

    async def _operate(self) -> None:
        operation, future = self._operations.popleft()
        self.operating = True
        self._changed()
        try:
            await operation(self)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever asked for the operation
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(None)
        finally:
            self.operating = False
        self._changed()
