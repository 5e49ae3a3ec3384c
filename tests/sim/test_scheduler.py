"""The scheduler on fake time: no loop, no clock, only steps."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from steersman_sim.engine.config import EngineConfig, TimeModel
from steersman_sim.engine.scheduler import Hold, Scheduler
from steersman_sim.engine.sequence import Finish, FinishKind, Phase, Sampling, Sequence
from steersman_sim.engine.spans import stamped_spans, true_spans
from steersman_sim.engine.weights import RankWeights


class Log:
    """A sink that counts."""

    def __init__(self) -> None:
        self.ended: list[Sequence] = []
        self.progressed = 0

    def progress(self, sequence: Sequence) -> None:
        assert sequence.phase is Phase.DECODE
        self.progressed += 1

    def finished(self, sequence: Sequence) -> None:
        assert sequence not in self.ended, "finished twice"
        self.ended.append(sequence)


class World:
    def __init__(self, *, deferred_abort: bool = True, **options: Any) -> None:
        self.config = EngineConfig(**{"block_size": 4, "kv_tokens": 400} | options)
        self.weights = RankWeights(label="0")
        self.scheduler = Scheduler(self.config, weights=self.weights, deferred_abort=deferred_abort)
        self.log = Log()
        self.now = 0.0
        self.count = 0

    def submit(self, prompt: list[int] | None = None, *, tokens: int = 4, **more: Any) -> Sequence:
        self.count += 1
        sampling = Sampling(max_tokens=tokens, **{"ignore_eos": True} | more)
        sequence = Sequence(
            f"r{self.count}",
            prompt=prompt or [1, 2, 3],
            sampling=sampling,
            sink=self.log,
            nonce=0,
        )
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> float:
        """One whole step; returns its duration, 0 when there was nothing to do."""
        step = self.scheduler.begin()
        if step is None:
            return 0.0
        self.now += step.duration
        self.scheduler.end()
        return step.duration

    def run(self) -> None:
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the scheduler does not come to an end")


def test_a_step_takes_what_the_time_model_says() -> None:
    model = TimeModel()
    world = World(kv_tokens=40_000)
    world.submit([1] * 100, tokens=3)
    prefill = 100 / model.prefill_tokens_per_s * (1 + 100 / 200_000)
    assert world.step() == pytest.approx(model.step_s + prefill)
    expected = model.step_s + model.context_s * 101 + model.sequence_s
    assert world.step() == pytest.approx(expected)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    world = World(kv_tokens=40_000, time=TimeModel(chunk_tokens=64))
    sequence = world.submit([1] * 150, tokens=1)
    for computed in (64, 128):
        world.step()
        assert sequence.computed == computed
        assert not sequence.output
    world.step()
    assert sequence.finish is not None


def test_decode_goes_on_beside_a_prefill() -> None:
    world = World(kv_tokens=40_000, time=TimeModel(chunk_tokens=64))
    first = world.submit(tokens=50)
    world.step()
    world.submit([1] * 1000, tokens=1)
    world.step()
    assert len(first.output) == 2


def test_admission_is_fifo_with_head_of_line_blocking() -> None:
    world = World(kv_tokens=64, max_running=8)
    world.submit([1] * 40, tokens=20)
    world.step()
    blocked = world.submit([2] * 40, tokens=4)
    small = world.submit([3], tokens=1)
    world.step()
    assert blocked.phase is Phase.WAITING
    assert small.phase is Phase.WAITING, "nobody overtakes"
    world.run()
    assert [sequence.rid for sequence in world.log.ended] == ["r1", "r3", "r2"]


def test_at_most_max_running_are_in_the_batch() -> None:
    world = World(max_running=2)
    for _ in range(5):
        world.submit(tokens=3)
    world.step()
    assert (world.scheduler.running, len(world.scheduler.waiting)) == (2, 3)
    world.run()
    assert len(world.log.ended) == 5


def test_the_second_of_two_equal_prompts_is_cached() -> None:
    world = World()
    prompt = list(range(10))
    world.submit(prompt, tokens=2)
    world.run()
    second = world.submit(prompt, tokens=2)
    world.run()
    assert second.cached_tokens == 8, "two whole blocks of four"


def test_a_wholly_cached_prompt_still_computes_one_token() -> None:
    world = World()
    world.submit(list(range(8)), tokens=1)
    world.run()
    second = world.submit(list(range(8)), tokens=1)
    world.run()
    assert second.cached_tokens == 4


def test_a_follow_up_turn_hits_the_output_of_the_turn_before() -> None:
    world = World()
    first = world.submit(list(range(8)), tokens=9)
    world.run()
    second = world.submit([*first.prompt, *first.output, 1, 2, 3, 4], tokens=1)
    world.run()
    assert second.cached_tokens == 16


def test_an_exhausted_pool_retracts_the_youngest_and_loses_nothing() -> None:
    # The reserve lets both in, then they outgrow the pool together.
    world = World(kv_tokens=400)
    first = world.submit([1] * 4, tokens=300)
    second = world.submit([2] * 4, tokens=300)
    world.run()
    assert second.retractions >= 1
    assert first.retractions == 0
    assert [len(s.output) for s in (first, second)] == [300, 300]
    assert world.scheduler.pool.held == 0


def test_a_prompt_beyond_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        World(kv_tokens=40).submit([1] * 40)


def test_an_answer_that_fills_the_pool_ends_for_length() -> None:
    world = World(kv_tokens=40)
    sequence = world.submit([1] * 10, tokens=1000)
    world.run()
    assert sequence.finish is not None
    assert sequence.finish.kind is FinishKind.LENGTH
    assert sequence.context == 40


def test_retract_keeps_the_output_and_computes_anew() -> None:
    world = World()
    sequence = world.submit(tokens=6)
    world.step()
    world.step()
    world.scheduler.retract_all()
    assert (sequence.phase, len(sequence.output)) == (Phase.WAITING, 2)
    assert world.scheduler.pool.held == 0
    world.run()
    assert (len(sequence.output), sequence.retractions) == (6, 1)


def test_retracted_sequences_keep_their_order() -> None:
    world = World(max_running=8)
    for _ in range(3):
        world.submit(tokens=9)
    world.step()
    world.submit(tokens=9)
    world.scheduler.retract_all()
    assert [s.rid for s in world.scheduler.waiting] == ["r1", "r2", "r3", "r4"]


def test_a_full_hold_takes_no_step_and_a_flush_ignores_the_queue() -> None:
    world = World()
    world.submit(tokens=6)
    world.step()
    world.scheduler.hold = Hold.EVERYTHING
    assert world.step() == 0.0
    assert not world.scheduler.flush(), "KV is held"
    world.scheduler.retract_all()
    assert world.scheduler.flush()
    world.scheduler.hold = Hold.NOTHING
    assert not world.scheduler.idle()


def test_a_hold_of_new_work_lets_the_batch_drain() -> None:
    world = World()
    first = world.submit(tokens=3)
    world.step()
    world.scheduler.hold = Hold.NEW
    second = world.submit(tokens=3)
    assert world.scheduler.draining
    world.run()
    assert first.finish is not None
    assert second.phase is Phase.WAITING
    assert not world.scheduler.draining


def test_a_deferred_abort_takes_effect_with_the_next_step() -> None:
    world = World(deferred_abort=True)
    sequence = world.submit(tokens=9)
    world.step()
    assert world.scheduler.abort(lambda s: s is sequence) == 1
    assert world.log.ended == []
    world.step()
    assert world.log.ended == [sequence]
    assert sequence.finish == Finish(FinishKind.ABORT, message="Aborted")
    assert len(sequence.output) == 2


def test_an_immediate_abort_frees_at_once_even_in_the_middle_of_a_step() -> None:
    world = World(deferred_abort=False)
    sequence = world.submit(tokens=9)
    world.step()
    world.scheduler.begin()
    world.scheduler.abort(lambda _: True)
    assert sequence.finish is not None
    world.scheduler.end()
    assert len(sequence.output) == 1
    assert world.scheduler.pool.held == 0


def test_an_abort_in_the_queue_says_so() -> None:
    world = World()
    sequence = world.submit(tokens=9)
    world.scheduler.abort(lambda _: True)
    assert sequence.finish is not None
    assert sequence.finish.message == "Abort in waiting queue"


def test_an_abort_during_a_chunked_prefill_ends_after_the_chunk() -> None:
    world = World(kv_tokens=4000, time=TimeModel(chunk_tokens=64))
    sequence = world.submit([1] * 500)
    world.step()
    world.scheduler.abort(lambda _: True)
    world.step()
    assert sequence.finish is not None
    assert sequence.output == []
    assert world.scheduler.pool.held == 0


def test_stop_token_and_stop_text_end_an_answer() -> None:
    world = World()
    free = world.submit(tokens=30)
    world.run()
    third = free.output[2]
    by_token = world.submit(tokens=30, stop_token_ids=frozenset({third}))
    text = bytes(free.output[3:5]).decode()
    by_text = world.submit(tokens=30, stop=(text,))
    world.run()
    assert by_token.finish is not None
    assert by_token.finish.matched == third
    assert by_token.output[-1] == third
    assert by_text.finish is not None
    assert by_text.finish.matched == text
    assert by_text.text() == bytes(by_text.output).decode().removesuffix(text)


def test_eos_comes_by_itself_and_not_before_min_tokens() -> None:
    world = World(mean_output_tokens=5.0, kv_tokens=4000)
    lengths = set()
    for number in range(30):
        sequence = world.submit([number + 1], tokens=200, ignore_eos=False, min_tokens=3)
        world.run()
        assert sequence.finish is not None
        assert sequence.finish.kind is FinishKind.STOP
        assert len(sequence.output) > 3
        lengths.add(len(sequence.output))
    assert len(lengths) > 3


def test_a_refit_between_two_steps_makes_a_new_span() -> None:
    world = World()
    sequence = world.submit(tokens=6)
    world.step()
    world.step()
    world.weights.load("disk:/1", version="1")
    world.run()
    spans = stamped_spans(sequence.marks, length=6)
    assert [(s.version, s.start, s.end) for s in spans] == [("0", 0, 2), ("1", 2, 6)]


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, aborts, pauses, refits and half steps."""

    deferred_abort = True

    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            kv_tokens=64,
            max_running=3,
            time=TimeModel(chunk_tokens=8),
            deferred_abort=self.deferred_abort,
        )
        self.sequences: list[Sequence] = []

    @property
    def scheduler(self) -> Scheduler:
        return self.world.scheduler

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        tokens=st.integers(1, 70),
        ignore_eos=st.booleans(),
    )
    def submit(self, prompt: list[int], tokens: int, ignore_eos: bool) -> None:
        self.sequences.append(self.world.submit(prompt, tokens=tokens, ignore_eos=ignore_eos))

    @precondition(lambda self: self.scheduler.under_way is None)
    @rule()
    def begin(self) -> None:
        step = self.scheduler.begin()
        if step is None:
            return
        assert step.prefill_tokens == sum(tokens for _, tokens in step.prefilling) <= 8
        model = self.world.config.time
        expected = model.step_s
        for sequence in step.decoding:
            expected += model.context_s * sequence.context + model.sequence_s
        for sequence, tokens in step.prefilling:
            expected += model.prefill(tokens, context=sequence.computed + tokens)
        assert step.duration == pytest.approx(expected)

    @precondition(lambda self: self.scheduler.under_way is not None)
    @rule()
    def end(self) -> None:
        self.scheduler.end()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.sequences:
            one = data.draw(st.sampled_from(self.sequences))
            self.scheduler.abort(lambda sequence: sequence is one)

    @precondition(lambda self: self.scheduler.under_way is None)
    @rule()
    def retract(self) -> None:
        self.scheduler.retract_all()

    @precondition(lambda self: self.scheduler.under_way is None)
    @rule(hold=st.sampled_from(Hold))
    def set_hold(self, hold: Hold) -> None:
        self.scheduler.hold = hold

    @precondition(lambda self: self.scheduler.under_way is None)
    @rule(version=st.sampled_from(["1", "2", None]))
    def refit(self, version: str | None) -> None:
        self.world.weights.load("disk", version=version)

    @precondition(lambda self: self.scheduler.under_way is None)
    @rule()
    def flush(self) -> None:
        held = self.scheduler.pool.held
        assert not (self.scheduler.flush() and held)

    @invariant()
    def no_request_is_lost(self) -> None:
        listed = self.scheduler.sequences()
        assert len(listed) == len(set(map(id, listed)))
        open_ones = [s for s in self.sequences if s.finish is None]
        assert {id(s) for s in listed} == {id(s) for s in open_ones}
        assert len(self.world.log.ended) == len(self.sequences) - len(open_ones)

    @invariant()
    def nobody_gets_more_than_asked(self) -> None:
        for sequence in self.sequences:
            assert len(sequence.output) <= sequence.sampling.max_tokens

    @invariant()
    def spans_partition_every_output(self) -> None:
        for sequence in self.sequences:
            length = len(sequence.output)
            assert (
                sum(s.end - s.start for s in stamped_spans(sequence.marks, length=length)) == length
            )
            assert sum(s.end - s.start for s in true_spans(sequence.marks, length=length)) == length

    @invariant()
    def blocks_are_held_by_those_who_run(self) -> None:
        scheduler = self.scheduler
        assert scheduler.running <= 3
        assert (scheduler.pool.held > 0) == (scheduler.running > 0)
        for sequence in scheduler.sequences():
            assert (sequence.lease is None) == (sequence.phase is Phase.WAITING)

    def teardown(self) -> None:
        scheduler = self.scheduler
        if scheduler.under_way is not None:
            scheduler.end()
        scheduler.hold = Hold.NOTHING
        self.world.run()
        assert scheduler.unfinished == 0
        assert scheduler.pool.held == 0
        assert scheduler.waiting_uncached_tokens == 0
        assert all(sequence.finish is not None for sequence in self.sequences)


class ImmediateMachine(SchedulerMachine):
    """The same with aborts that strike in the middle of a step."""

    deferred_abort = False


for machine in (SchedulerMachine, ImmediateMachine):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestDeferredAborts = SchedulerMachine.TestCase
TestImmediateAborts = ImmediateMachine.TestCase
