"""The messages whose frames are committed: every kind, with every field set.

``golden_frames.json`` has what each release wrote, by the name below. A later release adds its own
frames there and must go on reading the old ones; it never changes them. What a release did not know
yet reads as its default, see :func:`as_of`.
"""

import msgspec

from steersman.control import (
    SAID_VERSION,
    Ack,
    Bye,
    Cut,
    FromOperator,
    FromProxy,
    Hello,
    InFlight,
    Nack,
    Observe,
    Ping,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Snapshot,
    Watch,
    Welcome,
)
from steersman.engine import EngineRow, Gate, Role, Runtime, Trust
from steersman.policy import MaxStaleness
from steersman.settings import (
    BreakerSettings,
    HoldSettings,
    PoolSettings,
    RoutingPolicy,
    Timeouts,
)
from steersman.table import Epoch, PoolRow, Table

TABLE = Table(
    epoch=Epoch(3, 41),
    pools=(
        PoolRow(
            name="qwen",
            models=("Qwen3-8B", "qwen"),
            default=True,
            fleet_max="17",
            ordinals={"17": 2, "16": 1},
            settings=PoolSettings(
                policy=RoutingPolicy.STICKY,
                version_policy=MaxStaleness(2),
                hold=HoldSettings(timeout=30.0, max_requests=10, max_bytes=1000, slice=4),
                timeouts=Timeouts(
                    connect=1.0,
                    answer_head=60.0,
                    stream_idle=20.0,
                    client_stall=10.0,
                    stale=90.0,
                ),
                max_in_flight_per_engine=8,
                admit_unsynced=True,
                sticky_pause=True,
                fence=True,
                breaker=BreakerSettings(enabled=False, failures=3, cooldown=7.0),
            ),
        ),
        PoolRow(name="bare"),
    ),
    engines=(
        EngineRow(
            id="pod-1:30000",
            url="http://10.0.0.1:30000",
            pool="qwen",
            role=Role.DECODE,
            runtime=Runtime.SGLANG,
            zone="eu-1a",
            gate=Gate(open=False, count=7),
            paused=True,
            released=("kv_cache", "weights"),
            version="17",
            trust=Trust.VERIFIED,
            failed=True,
            boot_id="b7",
            cache_generation=5,
        ),
        EngineRow(id="e2", url="https://engine.example:8000", pool="bare"),
    ),
)

FROM_PROXY: dict[str, FromProxy] = {
    "hello": Hello(1, 2, "pod-a", "boot-a", "0.1.0", ("x",), Epoch(2, 9), 2),
    "hello-fresh": Hello(1, 1, "pod-a", "boot-a"),
    "reject-stale": Reject(RejectCode.STALE, 1.0, "term 3 is followed", None, 3),
    "ack": Ack(12, Epoch(3, 41), "00ff00ff00ff00ff"),
    "nack": Nack(12, Epoch(3, 41), Epoch(3, 40), "empty", "no engines"),
    "in-flight": InFlight(12, Epoch(3, 41), {"pod-1:30000": 3, "e2": 0}, 5),
    "observe": Observe("e2", "unknown_version", "19"),
    "observe-version": Observe("pod-1:30000", SAID_VERSION, "18"),
    "bye": Bye("shutting down"),
    "pong": Pong(4, Epoch(3, 41), "00ff00ff00ff00ff", 0.25),
}

FROM_OPERATOR: dict[str, FromOperator] = {
    "welcome": Welcome(1, 3, 12, 2.0, 10.0, "http://10.0.0.9:8080", "server-a"),
    "reject": Reject(RejectCode.NOT_LEADER, 2.5, "not the leader", "operator-1"),
    "snapshot": Snapshot(12, TABLE, "00ff00ff00ff00ff", ("http://10.0.1.1:29000",), True, 1.5),
    "watch": Watch(("pod-1:30000", "e2")),
    "cut": Cut("e2", "drain timeout"),
    "ping": Ping(5, Epoch(3, 41), "00ff00ff00ff00ff", 4),
    "retire": Retire("another operator leads"),
}


def as_of(release: str, message: FromProxy | FromOperator) -> FromProxy | FromOperator:
    """The message as far as a release could say it."""
    if not isinstance(message, Snapshot):
        return message
    table = message.table
    if release in ("0.1", "0.2"):
        engines = (msgspec.structs.replace(row, cache_generation=0) for row in table.engines)
        table = msgspec.structs.replace(table, engines=tuple(engines))
    if release == "0.1":
        pool, *others = table.pools
        assert pool.settings is not None
        settings = msgspec.structs.replace(
            pool.settings,
            timeouts=msgspec.structs.replace(pool.settings.timeouts, stale=Timeouts().stale),
            breaker=BreakerSettings(),
        )
        pools = (msgspec.structs.replace(pool, settings=settings), *others)
        table = msgspec.structs.replace(table, pools=pools)
    return msgspec.structs.replace(message, table=table)
