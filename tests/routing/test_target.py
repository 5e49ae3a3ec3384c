"""``x-smg-target-worker``: that engine or none."""

import pytest

from steersman.engine import Trust
from steersman.errors import TargetUnavailable
from steersman.settings import HoldSettings, PoolSettings
from steersman_proxy.routing.fleet import Fleet
from tests.routing.support import CLOSED, fleet, outcomes, refused, request, row, selected, waits


def three() -> Fleet:
    return fleet(row("a", paused=True), row("b"), row("c"))


@pytest.mark.parametrize("target", ["c", "http://c:8000", "http://c:8000/", "2"])
def test_a_target_is_an_id_a_url_or_an_index_into_the_unfiltered_list(target: str) -> None:
    assert outcomes(three(), request(target=target), count=5) == {"c"}


@pytest.mark.parametrize(
    "target", ["d", "http://d:8000", "3", "-1", "", "0x1", "\u0661", "9" * 400, "http://c:8000/v1"]
)
def test_an_unknown_target_is_refused_by_name(target: str) -> None:
    error = refused(three(), request(target=target))
    assert isinstance(error, TargetUnavailable)
    assert error.status == 503
    assert ascii(target[:160]) in str(error)


def test_an_id_that_looks_like_an_index_is_an_id() -> None:
    made = fleet(row("1"), row("0"))
    assert outcomes(made, request(target="0"), count=3) == {"0"}
    assert outcomes(made, request(target="1"), count=3) == {"1"}


@pytest.mark.parametrize(
    ("changes", "reason", "policy"),
    [
        ({"paused": True}, "paused", None),
        ({"gate": CLOSED}, "gate_closed", None),
        ({"released": ("weights",)}, "asleep", None),
        ({"trust": Trust.UNSYNCED}, "unsynced", None),
        ({"failed": True}, "failed", None),
        ({"version": "6"}, "stale", "latest-only"),
        ({"version": None}, "unversioned", "min-version:1"),
    ],
)
def test_a_target_that_is_out_is_refused_with_its_reason(
    changes: dict[str, object], reason: str, policy: str | None
) -> None:
    made = fleet(row("good"), row("it", **changes))
    error = refused(made, request(policy, target="it"))
    assert isinstance(error, TargetUnavailable)
    assert error.reasons == {reason: 1}
    assert str(error).startswith(
        f"the target it (http://it:8000) may not take this request: {reason}: "
    )


def test_an_excluded_target_is_refused() -> None:
    error = refused(three(), request(target="b", excluded=frozenset({"b"})))
    assert isinstance(error, TargetUnavailable)
    assert error.reasons == {"excluded": 1}


def test_a_full_target_is_waited_for() -> None:
    made = fleet(row("a"), row("b"), settings=PoolSettings(max_in_flight_per_engine=1))
    assert selected(made, request(target="b")).engine.id == "b"
    assert waits(made, request(target="b")).lane.engine == "b"


def test_a_full_target_is_refused_where_hold_is_off() -> None:
    settings = PoolSettings(max_in_flight_per_engine=1, hold=HoldSettings(timeout=0))
    made = fleet(row("a"), row("b"), settings=settings)
    selected(made, request(target="b"))
    error = refused(made, request(target="b"))
    assert isinstance(error, TargetUnavailable)
    assert str(error).endswith("full: 1 in flight from this proxy, which is the limit")


def test_a_target_wins_over_a_routing_key() -> None:
    assert outcomes(three(), request(target="c", affinity="anything"), count=5) == {"c"}
