"""Random calls with random faults, as the fleet core would make them: no engine dies of any, and what
is said of its weights is true.

The walk keeps the facts as the core does (``Facts.during``, ``Facts.after``, ``next_call``), makes
only calls that follow from them, and stops at an engine of which it is not known what is released.
Requests of others, which no barrier holds back, come at any time.
"""

import asyncio
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from steersman.engine import Control, Runtime
from steersman_operator.fleet.facts import CallKind, Facts, Outcome, next_call
from steersman_operator.fleet.spec import PauseMode, SourceKind, Weights
from steersman_sim.engine import REFIT, Fault, When
from tests.engines.support import Steered, held, paused, released, steered

ROUTES = {
    Runtime.SGLANG: (
        "/pause_generation /continue_generation /flush_cache /release_memory_occupation "
        "/resume_memory_occupation /ready /ping /server_info /model_info /v1/loads "
        "/update_weights_from_disk /update_weight_version"
    ).split(),
    Runtime.VLLM: (
        "/pause /resume /sleep /wake_up /is_paused /is_sleeping /metrics /version /weight_info "
        "/collective_rpc /reset_prefix_cache /update_weight_version"
    ).split(),
}

LOST: list[dict[str, Any]] = [
    {"drop": True},
    {"hang": True},
    {"status": 500, "body": "Internal Server Error"},
    {"status": 503},
]
"""What may become of the answer to a call that was carried out."""

REFUSALS: list[dict[str, Any]] = [{"status": 400, "body": "no"}, {"status": 404}]
"""Answered before anything is done; both engines check what they are sent first."""

HANG = 0.1
"""Seconds of every call: how long a call that hangs is waited for."""

goals = st.tuples(st.just("goal"), st.sampled_from(list(Control)), st.sampled_from(list(PauseMode)))
before = st.tuples(st.sampled_from(LOST + REFUSALS), st.just(When.BEFORE))
after = st.tuples(st.sampled_from(LOST), st.just(When.AFTER))
faults = st.tuples(st.just("fault"), st.integers(0, 11), st.one_of(before, after))
loads = st.tuples(
    st.sampled_from(["refit", "label"]), st.sampled_from("789"), st.sampled_from(list(PauseMode))
)
torn = st.tuples(st.just("tear"), st.sampled_from(["half-way", "refuse-flush"]))
others = st.tuples(st.sampled_from(["request", "look", "load", "restart"]))
walks = st.lists(st.one_of(goals, goals, faults, others, loads, torn), max_size=12)


class Walk:
    """One engine on its way through the steps of an example."""

    def __init__(self, it: Steered) -> None:
        self.it = it
        self.facts = Facts(paused=False, released=())
        self.requests: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        boot = (await self.it.look()).boot_id
        self.facts = Facts(boot_id=boot, paused=False, released=())

    async def step(self, step: tuple[Any, ...]) -> None:
        it = self.it
        match step:
            case ("goal", goal, mode):
                await self.head_for(goal, mode)
            case ("fault", number, (kind, when)):
                routes = ROUTES[Runtime(it.engine.config.runtime.value)]
                fault = Fault(times=1, when=when, **kind)
                it.engine.faults.arm(routes[number % len(routes)], fault)
            case ("tear", name):
                it.engine.faults.arm(REFIT, name)
            case ("refit" | "label" as what, version, mode):
                await self.load(CallKind(what), version, mode)
            case ("request",):
                self.requests.append(it.ask(tokens=30))
            case ("look",):
                await self.look()
            case ("load",):
                await it.load()
            case ("restart",):
                await it.engine.restart()
        assert it.engine.died is None, (step, it.engine.died)

    async def head_for(self, goal: Control, mode: PauseMode) -> None:
        """At most a few calls towards a goal, as long as it is known what the engine is."""
        for _ in range(4):
            if self.facts.released is None or self.facts.paused is None:
                await self.look()
            if self.facts.released is None:
                return
            kind = next_call(self.facts, goal)
            if kind is None:
                return
            await self.call(kind, mode)

    async def call(self, kind: CallKind, mode: PauseMode) -> None:
        it, before = self.it, self.facts
        tags = before.released if kind is CallKind.WAKE else None
        # One that hangs in vain has its effect, or none, before the next one is made.
        timeout = HANG if _hangs(it) else 30.0
        result = await it.do(kind, mode=mode, tags=tags, boot_id=before.boot_id, timeout=timeout)
        assert it.engine.died is None, (kind, mode, before, result, it.engine.died)
        match result.outcome:
            case Outcome.OK:
                self.facts = before.after(kind)
                self.check(kind)
            case Outcome.REFUSED:
                pass
            case Outcome.FAILED | Outcome.UNKNOWN:
                self.facts = before.during(kind)
        await self.look()

    async def load(self, kind: CallKind, version: str, mode: PauseMode) -> None:
        """New weights for an engine that has the memory for them."""
        it = self.it
        await self.look()
        if self.facts.released != ():
            return
        await self.head_for(Control.PAUSED, mode)
        if self.facts.control is not Control.PAUSED:
            return
        before = held(it.engine)
        weights = Weights(version=version, source=SourceKind.DISK, path=f"/w/{version}")
        timeout = HANG if _hangs(it) else 30.0
        result = await it.do(
            kind, mode=mode, boot_id=self.facts.boot_id, weights=weights, timeout=timeout
        )
        assert it.engine.died is None, (kind, mode, result, it.engine.died)
        match result.outcome:
            case Outcome.OK if kind is CallKind.REFIT:
                assert held(it.engine) == [(version, f"disk:/w/{version}")]
            case Outcome.OK:
                assert [label for label, _ in held(it.engine)] == [version]
            case Outcome.REFUSED:
                assert held(it.engine) == before
            case Outcome.FAILED | Outcome.UNKNOWN:
                pass
        await self.look()

    def check(self, kind: CallKind) -> None:
        """An OK is true."""
        engine = self.it.engine
        match kind:
            case CallKind.PAUSE:
                assert paused(engine)
            case CallKind.RESUME:
                assert not paused(engine)
            case CallKind.SLEEP:
                assert released(engine) == {"kv_cache", "weights"}
            case CallKind.WAKE:
                assert released(engine) == set()
            case CallKind.REFIT | CallKind.LABEL | CallKind.TRANSFER:
                raise AssertionError("no walk loads weights")

    async def look(self) -> None:
        seen = await self.it.look()
        if not seen.reachable:
            return
        if seen.boot_id is not None and seen.boot_id != self.facts.boot_id:
            self.facts = Facts(boot_id=seen.boot_id, paused=False, released=())
            return
        self.facts = Facts(
            boot_id=self.facts.boot_id,
            paused=self.facts.paused if seen.paused is None else seen.paused,
            released=self.facts.released if seen.released is None else seen.released,
        )

    async def end(self) -> None:
        """Without faults the engine comes back, unless nobody can know what it is."""
        self.it.engine.faults.disarm()
        await self.look()
        if self.facts.released is None:
            await self.it.engine.restart()
            await self.look()
        await self.head_for(Control.ACTIVE, PauseMode.ABORT)
        assert self.facts.control is Control.ACTIVE, self.facts
        assert (await self.it.ask()).status == 200
        assert self.it.engine.died is None
        await asyncio.gather(*self.requests, return_exceptions=True)


def _hangs(it: Steered) -> bool:
    armed = it.engine.faults.to_json().values()
    return any(fault.get("hang") for faults in armed for fault in faults)


async def walk(runtime: Runtime, steps: list[tuple[Any, ...]]) -> None:
    async with steered(runtime, look_timeout=HANG * 3) as it:
        on = Walk(it)
        await on.begin()
        for step in steps:
            await on.step(step)
        await on.end()


LOST_RELEASE = ("fault", 3, ({"drop": True}, When.AFTER))
ASLEEP = ("goal", Control.ASLEEP, PauseMode.KEEP)
ACTIVE = ("goal", Control.ACTIVE, PauseMode.KEEP)
SEVEN = ("refit", "7", PauseMode.RECOMPUTE)


@given(steps=walks)
@example(steps=[LOST_RELEASE, ASLEEP, ACTIVE, ASLEEP])
@example(steps=[ASLEEP, ("restart",), ACTIVE])
@example(steps=[("request",), ASLEEP, ("request",), ACTIVE])
@example(steps=[SEVEN, ("tear", "half-way"), ("refit", "8", PauseMode.KEEP), SEVEN, ACTIVE])
def test_no_walk_ends_an_sglang_engine(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(walk(Runtime.SGLANG, steps))


@given(steps=walks)
@example(steps=[("fault", 2, ({"drop": True}, When.AFTER)), ASLEEP, ACTIVE])
@example(steps=[ASLEEP, ("restart",), ACTIVE])
@example(steps=[SEVEN, ("tear", "half-way"), ("refit", "8", PauseMode.KEEP), SEVEN, ACTIVE])
def test_no_walk_ends_a_vllm_engine(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(walk(Runtime.VLLM, steps))
