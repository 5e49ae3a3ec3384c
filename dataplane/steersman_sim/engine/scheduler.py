"""The scheduler of one rank: continuous batching, iteration by iteration, without I/O or clock.

Its owner calls :meth:`Scheduler.begin`, lets the step's duration pass on whatever clock it has, and
calls :meth:`Scheduler.end`. Everything else (arrivals, aborts, pauses) may happen in between.

Admission is FIFO with head-of-line blocking. A step decodes every running sequence once and
prefills at most one chunk. When the KV pool is exhausted the youngest sequence is retracted: it
keeps its output tokens and is computed anew.
"""

import enum
from collections import deque
from collections.abc import Callable

from steersman_sim.engine.config import EngineConfig
from steersman_sim.engine.generation import garbage_at, token_at
from steersman_sim.engine.kvcache import CacheObserver, KvPool, digests_of
from steersman_sim.engine.sequence import Finish, FinishKind, Phase, Sequence
from steersman_sim.engine.tokens import EOS
from steersman_sim.engine.weights import RankWeights

_ADMISSION_RESERVE = 128
"""Output tokens for which a sequence must find room before it is admitted."""


class Hold(enum.Enum):
    """What the scheduler does not do while paused."""

    NOTHING = enum.auto()
    NEW = enum.auto()
    """Admit nothing new; what runs goes on (vLLM pause modes abort and wait)."""
    EVERYTHING = enum.auto()
    """Take no step (SGLang in_place and retract, vLLM keep)."""


class Step:
    """One iteration under way."""

    __slots__ = ("decoding", "duration", "prefill_tokens", "prefilling")

    def __init__(
        self,
        *,
        decoding: list[Sequence],
        prefilling: list[tuple[Sequence, int]],
        prefill_tokens: int,
        duration: float,
    ) -> None:
        self.decoding = decoding
        self.prefilling = prefilling
        self.prefill_tokens = prefill_tokens
        self.duration = duration
        """Engine seconds."""


class Scheduler:
    """Continuous batching over one KV pool."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        weights: RankWeights,
        deferred_abort: bool,
        observer: CacheObserver | None = None,
    ) -> None:
        """``deferred_abort``: a running sequence that is aborted ends with its next step (SGLang)
        instead of at once (vLLM).
        """
        self._config = config
        self._time = config.time
        self.weights = weights
        self.pool = KvPool(
            blocks=config.kv_tokens // config.block_size,
            block_size=config.block_size,
            observer=observer,
        )
        self.hold = Hold.NOTHING
        self.waiting: deque[Sequence] = deque()
        self.prefilling: deque[Sequence] = deque()
        self.decoding: list[Sequence] = []
        self.under_way: Step | None = None
        self.generated_tokens = 0
        self.prefilled_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.retractions = 0
        self._deferred_abort = deferred_abort
        self._context_tokens = 0
        self._queued_uncached = 0
        self._admissions = 0

    # --- Reading ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Tokens that the KV pool holds."""
        return self.pool.blocks * self.pool.block_size

    @property
    def max_running(self) -> int:
        """At most so many sequences in a batch."""
        return self._config.max_running

    @property
    def running(self) -> int:
        """Sequences in the batch, in prefill or decode."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def unfinished(self) -> int:
        """Sequences that were submitted and did not end yet."""
        return self.running + len(self.waiting)

    @property
    def used_tokens(self) -> int:
        """Tokens of the blocks that sequences hold."""
        return self.pool.held * self.pool.block_size

    @property
    def waiting_uncached_tokens(self) -> int:
        """Prefill tokens still to be computed: of the queue, and the rest of running prefills.

        For a queued sequence this is what the cache lacked when it was queued.
        """
        running = sum(sequence.target - sequence.computed for sequence in self.prefilling)
        return self._queued_uncached + running

    @property
    def draining(self) -> bool:
        """Whether something still runs, or will run again although nothing new is admitted."""
        if self.running or self.under_way is not None:
            return True
        return any(sequence.retractions for sequence in self.waiting)

    def idle(self) -> bool:
        """Whether nothing runs and, unless fully paused, nothing waits (SGLang's flush rule)."""
        if self.running or self.under_way is not None:
            return False
        return self.hold is Hold.EVERYTHING or not self.waiting

    def sequences(self) -> list[Sequence]:
        """All unfinished sequences, running ones first."""
        return [*self.decoding, *self.prefilling, *self.waiting]

    # --- Arrivals and aborts ---------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            ValueError: the prompt can never fit into the KV pool.
        """
        if len(sequence.prompt) + 1 > self.capacity:
            raise ValueError("the prompt does not fit into the KV pool")
        digests = self._digests(sequence)
        hits = self.pool.match(digests, limit=len(digests))
        sequence.uncached = len(sequence.prompt) - hits * self.pool.block_size
        self._queued_uncached += sequence.uncached
        self.waiting.append(sequence)

    def abort(self, matches: Callable[[Sequence], bool], *, message: str = "Aborted") -> int:
        """Abort what matches; returns how many sequences that were."""
        hit = [sequence for sequence in self.sequences() if matches(sequence)]
        for sequence in hit:
            match sequence.phase:
                case Phase.WAITING:
                    waited = "Abort in waiting queue" if message == "Aborted" else message
                    self._finish(sequence, Finish(FinishKind.ABORT, message=waited))
                case Phase.PREFILL | Phase.DECODE:
                    if self._deferred_abort:
                        sequence.abort_message = message
                    else:
                        self._finish(sequence, Finish(FinishKind.ABORT, message=message))
                case Phase.DONE:
                    pass
        return len(hit)

    # --- Pauses ----------------------------------------------------------------------------------

    def retract_all(self) -> None:
        """Send all running sequences back to the head of the queue, keeping their output.

        Call between steps.
        """
        running = [*self.decoding, *self.prefilling]
        running.sort(key=lambda sequence: sequence.admitted)
        for sequence in reversed(running):
            self._retract(sequence)

    def flush(self) -> bool:
        """Empty the prefix cache; ``False`` while the scheduler is not idle."""
        return self.idle() and self.pool.clear()

    # --- Steps -----------------------------------------------------------------------------------

    def begin(self) -> Step | None:
        """Plan one iteration; ``None`` when there is nothing to do."""
        assert self.under_way is None, "the last step has not ended"
        if self.hold is Hold.EVERYTHING:
            return None
        self._admit()
        if not self.prefilling and not self.decoding:
            return None
        self._make_room()
        duration = self._time.decode(context_tokens=self._context_tokens, batch=len(self.decoding))
        budget = self._time.chunk_tokens
        chunk: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            tokens = min(budget, sequence.target - sequence.computed)
            chunk.append((sequence, tokens))
            duration += self._time.prefill(tokens, context=sequence.computed + tokens)
            budget -= tokens
            if budget <= 0:
                break
        self.under_way = Step(
            decoding=list(self.decoding),
            prefilling=chunk,
            prefill_tokens=self._time.chunk_tokens - budget,
            duration=duration,
        )
        return self.under_way

    def end(self) -> None:
        """Take over what the step under way computed."""
        step, self.under_way = self.under_way, None
        assert step is not None, "no step is under way"
        for sequence, tokens in step.prefilling:
            if sequence.phase is not Phase.PREFILL:
                continue
            sequence.computed += tokens
            self.prefilled_tokens += tokens
            if sequence.computed >= sequence.target:
                self._prefilled(sequence)
            elif sequence.abort_message is not None:
                self._finish(sequence, Finish(FinishKind.ABORT, message=sequence.abort_message))
        for sequence in step.decoding:
            if sequence.phase is Phase.DECODE:
                sequence.computed += 1
                self._emit(sequence)

    # --- Inside ----------------------------------------------------------------------------------

    def _digests(self, sequence: Sequence) -> list[bytes]:
        """The digests of the whole blocks of a sequence's context, computed once per block."""
        size = self.pool.block_size
        if len(sequence.digests) < sequence.context // size:
            tokens = sequence.prompt + sequence.output if sequence.output else sequence.prompt
            sequence.digests = digests_of(
                tokens, block_size=size, salt=sequence.salt, known=sequence.digests
            )
        return sequence.digests

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)

    def _admit(self) -> None:
        while self.waiting and self.running < self._config.max_running:
            sequence = self.waiting[0]
            if self.hold is Hold.NEW and not sequence.retractions:
                return
            if not self._start(sequence):
                return
            self.waiting.popleft()
            self._queued_uncached -= sequence.uncached

    def _start(self, sequence: Sequence) -> bool:
        """Give the head of the queue its blocks; ``False`` while the pool has no room for it."""
        digests = self._digests(sequence)
        size = self.pool.block_size
        context = sequence.context
        # At least one token has to be computed, or there would be nothing to sample from.
        hits = self.pool.match(digests, limit=(context - 1) // size)
        left = sequence.sampling.max_tokens - len(sequence.output)
        room = min(context + max(1, min(left, _ADMISSION_RESERVE)), self.capacity)
        if self.running and self._blocks_for(room) - hits > self.pool.available:
            return False
        lease = self.pool.acquire(
            digests,
            hits=hits,
            blocks=self._blocks_for(context + 1),
            revision=self.weights.weights.revision,
        )
        if lease is None:
            return False
        sequence.lease = lease
        sequence.capacity = lease.blocks * size
        sequence.computed = hits * size
        sequence.target = context
        if not sequence.retractions:
            sequence.cached_tokens = hits * size
            self.prompt_tokens += context
            self.cached_tokens += sequence.cached_tokens
        sequence.stale_cached_tokens += lease.stale_blocks * size
        self._admissions += 1
        sequence.admitted = self._admissions
        sequence.phase = Phase.PREFILL
        self.prefilling.append(sequence)
        return True

    def _make_room(self) -> None:
        """Give each decoding sequence the block that its next token needs, retracting the youngest
        when there is none.
        """
        for sequence in list(self.decoding):
            while sequence.phase is Phase.DECODE and sequence.context + 1 > sequence.capacity:
                assert sequence.lease is not None, "a decoding sequence holds blocks"
                if self.pool.grow(sequence.lease):
                    sequence.capacity += self.pool.block_size
                    continue
                youngest = max((*self.decoding, *self.prefilling), key=lambda s: s.admitted)
                self.retractions += 1
                self._retract(youngest)

    def _retract(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.computed = 0
        sequence.retractions += 1
        sequence.phase = Phase.WAITING
        sequence.uncached = sequence.context
        self._queued_uncached += sequence.uncached
        self.waiting.appendleft(sequence)
        if sequence.abort_message is not None:
            self._finish(sequence, Finish(FinishKind.ABORT, message=sequence.abort_message))

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of whatever list it is in, and its blocks from it."""
        match sequence.phase:
            case Phase.WAITING:
                self.waiting.remove(sequence)
                self._queued_uncached -= sequence.uncached
            case Phase.PREFILL:
                self.prefilling.remove(sequence)
            case Phase.DECODE:
                self.decoding.remove(sequence)
                self._context_tokens -= sequence.context
            case Phase.DONE:
                raise AssertionError("the sequence has ended already")
        if sequence.lease is not None:
            self.pool.release(sequence.lease)
            sequence.lease = None
            sequence.capacity = 0

    def _prefilled(self, sequence: Sequence) -> None:
        assert sequence.lease is not None, "a prefilling sequence holds blocks"
        self.pool.store(
            sequence.lease, self._digests(sequence), revision=self.weights.weights.revision
        )
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        self._context_tokens += sequence.context
        sequence.phase = Phase.DECODE
        self._emit(sequence)

    def _emit(self, sequence: Sequence) -> None:
        """Add one output token and see whether it was the last."""
        stamp = self.weights.stamp
        marks = sequence.marks
        if not marks or marks[-1][1] is not stamp:
            sequence.restamp(stamp, seed=self._config.seed, mean=self._config.mean_output_tokens)
        output = sequence.output
        position = len(output)
        ends = sequence.stop_after == position + 1
        if ends:
            token = EOS
        elif sequence.garbage:
            token = garbage_at(position)
        else:
            token = token_at(sequence.key, position)
        output.append(token)
        self._context_tokens += 1
        self.generated_tokens += 1
        if sequence.logprobs is not None:
            sequence.note_logprob()
        finish = self._finish_of(sequence, token, ends=ends)
        if finish is None:
            sequence.sink.progress(sequence)
        else:
            self._finish(sequence, finish)

    def _finish_of(self, sequence: Sequence, token: int, *, ends: bool) -> Finish | None:
        sampling = sequence.sampling
        if sequence.abort_message is not None:
            return Finish(FinishKind.ABORT, message=sequence.abort_message)
        if ends or (
            token in sampling.stop_token_ids and len(sequence.output) > sampling.min_tokens
        ):
            return Finish(FinishKind.STOP, matched=token)
        if sampling.stop and len(sequence.output) > sampling.min_tokens:
            text = sequence.stop_text()
            if text is not None:
                return Finish(FinishKind.STOP, matched=text)
        if len(sequence.output) >= sampling.max_tokens or sequence.context >= self.capacity:
            return Finish(FinishKind.LENGTH)
        return None

    def _finish(self, sequence: Sequence, finish: Finish) -> None:
        if sequence.phase is not Phase.WAITING and sequence.lease is not None:
            # KV is computed for all but the last output token.
            whole = sequence.computed // self.pool.block_size
            self.pool.store(
                sequence.lease,
                self._digests(sequence)[:whole],
                revision=self.weights.weights.revision,
            )
        self._leave(sequence)
        sequence.phase = Phase.DONE
        sequence.finish = finish
        sequence.sink.finished(sequence)
