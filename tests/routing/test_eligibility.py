"""Which engines are eligible: control, gate, trust, health and version policy."""

import itertools

import pytest

from steersman.engine import Gate, Role, Trust
from steersman.errors import NoAvailableEngine, TargetUnavailable
from steersman.policy import AnyVersion, LatestOnly, MinVersion, parse_policy
from steersman.settings import PoolSettings, RoutingPolicy
from steersman.table import Epoch
from steersman_proxy.routing.eligibility import WAITABLE, Reason, reason_out
from steersman_proxy.routing.view import CACHED_POLICIES
from tests.routing.support import (
    CLOSED,
    POOL,
    ROUND_ROBIN,
    accepts,
    chosen,
    could_serve,
    fleet,
    may_serve,
    outcomes,
    refused,
    request,
    row,
    selected,
    table,
    waits,
)

POLICIES = ["any", "latest-only", "min-version:7", "max-staleness:0", "max-staleness:10"]


@pytest.mark.parametrize(
    ("policy", "eligible"),
    [
        ("any", {"seven", "six", "four", "bare"}),
        ("max-staleness:10", {"seven", "six", "four"}),
        ("max-staleness:1", {"seven", "six"}),
        ("max-staleness:0", {"seven"}),
        ("latest-only", {"seven"}),
        ("min-version:7", {"seven"}),
        ("min-version:5", {"seven", "six"}),
    ],
)
def test_each_policy_admits_exactly_its_versions(policy: str, eligible: set[str]) -> None:
    made = fleet(row("seven", "7"), row("six", "6"), row("four", "4"), row("bare", None))
    assert outcomes(made, request(policy)) == eligible


@pytest.mark.parametrize("policy", ["any", "latest-only", "max-staleness:0"])
def test_an_unversioned_pool_serves_all_but_a_minimum(policy: str) -> None:
    made = fleet(row("a", None), row("b", None), fleet_max=None)
    assert outcomes(made, request(policy)) == {"a", "b"}
    error = refused(made, request("min-version:7"))
    assert isinstance(error, NoAvailableEngine)
    assert error.reasons == {"unversioned": 2}


def test_the_request_policy_overrides_the_pools_in_both_directions() -> None:
    strict = fleet(
        row("new", "7"),
        row("old", "6"),
        settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, version_policy=LatestOnly()),
    )
    assert outcomes(strict, request()) == {"new"}
    assert outcomes(strict, request("any")) == {"new", "old"}
    loose = fleet(row("new", "7"), row("old", "6"))
    assert outcomes(loose, request()) == {"new", "old"}
    assert outcomes(loose, request("latest-only")) == {"new"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"paused": True}, Reason.PAUSED),
        ({"released": ("weights", "kv_cache")}, Reason.ASLEEP),
        ({"released": ("kv_cache",)}, Reason.ASLEEP),
        ({"released": ("weights",), "paused": True, "gate": CLOSED}, Reason.ASLEEP),
        ({"gate": CLOSED}, Reason.GATE_CLOSED),
        ({"trust": Trust.UNSYNCED}, Reason.UNSYNCED),
        ({"trust": Trust.UNKNOWN}, Reason.UNSYNCED),
        ({"trust": Trust.UNCERTAIN}, Reason.UNCERTAIN),
        ({"failed": True}, Reason.FAILED),
        ({"role": Role.PREFILL}, Reason.ROLE),
    ],
)
def test_an_engine_out_for_its_state_is_out_under_every_policy(
    policy: str, changes: dict[str, object], reason: Reason
) -> None:
    made = fleet(row("good"), row("bad", **changes))
    assert outcomes(made, request(policy)) == {"good"}
    pool = made.pool(POOL)
    assert pool is not None
    bad = pool.engines[1]
    assert pool.reason_out(bad, role=Role.PLAIN, policy=parse_policy(policy)) is reason


def test_engines_without_a_version_serve_until_the_pool_has_one() -> None:
    rows = [row("a", None, trust=Trust.UNKNOWN), row("b", None, trust=Trust.UNKNOWN)]
    made = fleet(*rows, fleet_max=None)
    assert outcomes(made, request()) == {"a", "b"}
    made.apply(table([row("a", "1"), rows[1]], fleet_max="1", seq=2))
    assert outcomes(made, request()) == {"a"}


@pytest.mark.parametrize("policy", POLICIES)
def test_that_nobody_is_left_with_the_version_does_not_make_the_others_right(policy: str) -> None:
    """Field failure 1 with all engines at once: they were restarted, so that no version counts."""
    rows = [row("a", None, trust=Trust.UNSYNCED), row("b", None, trust=Trust.UNSYNCED)]
    made = fleet(*rows, fleet_max=None)

    error = refused(made, request(policy))

    assert isinstance(error, NoAvailableEngine)
    assert error.reasons == {"unsynced": 2}
    assert isinstance(refused(made, request(policy, target="a")), TargetUnavailable)
    assert isinstance(refused(made, request(policy, affinity="key")), NoAvailableEngine)
    assert made.at_once(None) is None
    assert made.at_once("key") is None


def test_whoever_admits_unsynced_engines_has_them_also_when_there_are_no_others() -> None:
    settings = PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, admit_unsynced=True)
    rows = [row("a", None, trust=Trust.UNSYNCED), row("b", None, trust=Trust.UNSYNCED)]
    made = fleet(*rows, fleet_max=None, settings=settings)
    assert outcomes(made, request()) == {"a", "b"}
    assert isinstance(refused(made, request("latest-only")), NoAvailableEngine)


def test_admit_unsynced_admits_them_to_any_only() -> None:
    made = fleet(
        row("synced"),
        row("new", None, trust=Trust.UNSYNCED),
        row("claims", "7", trust=Trust.UNSYNCED),
        row("torn", "7", trust=Trust.UNCERTAIN),
        settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, admit_unsynced=True),
    )
    assert outcomes(made, request("any")) == {"synced", "new", "claims"}
    assert outcomes(made, request("latest-only")) == {"synced"}


def test_uncertain_and_failed_engines_are_out_even_without_versions() -> None:
    made = fleet(
        row("good", None),
        row("torn", None, trust=Trust.UNCERTAIN),
        row("broken", None, failed=True),
        fleet_max=None,
    )
    assert outcomes(made, request()) == {"good"}


def test_an_engine_seen_ahead_of_the_table_is_not_stale() -> None:
    made = fleet(row("ahead", "8"), row("newest", "7"), row("behind", "6"))
    assert outcomes(made, request("latest-only")) == {"ahead", "newest"}


def test_explicit_ordinals_decide_what_is_newest() -> None:
    made = fleet(
        row("a", "beta"), row("b", "alpha"), fleet_max="alpha", ordinals={"beta": 1, "alpha": 2}
    )
    assert outcomes(made, request("latest-only")) == {"b"}
    assert outcomes(made, request("max-staleness:1")) == {"a", "b"}


def test_health_takes_an_engine_out_and_lets_it_in_again() -> None:
    made = fleet(row("a"), row("b"))
    sick = next(engine for engine in made.engines() if engine.id == "a")
    made.set_health(sick, False)
    assert outcomes(made, request()) == {"b"}
    made.set_health(sick, True)
    assert outcomes(made, request()) == {"a", "b"}


def test_rl_off_looks_at_health_alone() -> None:
    made = fleet(
        row("paused", paused=True),
        row("asleep", released=("weights",)),
        row("closed", gate=CLOSED),
        row("torn", trust=Trust.UNCERTAIN),
        row("old", "1"),
        row("sick"),
        settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, max_in_flight_per_engine=1),
        rl_enabled=False,
    )
    sick = next(engine for engine in made.engines() if engine.id == "sick")
    made.set_health(sick, False)
    assert outcomes(made, request("latest-only")) == {"paused", "asleep", "closed", "torn", "old"}
    # Nobody waits in a plain relay, so no limit can make somebody wait.
    held = [selected(made, request()) for _ in range(50)]
    assert all(result.version is None for result in held)
    for engine in made.engines():
        made.set_health(engine, False)
    error = refused(made, request())
    assert str(error) == "no engine of pool qwen may take this request: 6 unhealthy"


@pytest.mark.parametrize(
    ("changes", "waitable"),
    [
        ({"paused": True}, True),
        ({"gate": CLOSED}, True),
        ({"paused": True, "gate": CLOSED}, True),
        # Closed and old: it is being refitted, perhaps to what the request wants.
        ({"gate": CLOSED, "version": "3"}, True),
        ({"paused": True, "version": None}, True),
        # Old and open: nothing is going to change it.
        ({"version": "3"}, False),
        ({"released": ("weights",)}, False),
        ({"released": ("kv_cache",), "gate": CLOSED}, False),
        ({"trust": Trust.UNSYNCED, "gate": CLOSED}, False),
        ({"trust": Trust.UNCERTAIN, "gate": CLOSED}, False),
        ({"failed": True, "paused": True}, False),
        ({"role": Role.DECODE, "paused": True}, False),
    ],
)
def test_a_request_waits_only_for_engines_that_an_operation_brings_back(
    changes: dict[str, object], waitable: bool
) -> None:
    made = fleet(row("only", **changes))
    if waitable:
        assert waits(made, request("latest-only")).lane.pool == POOL
    else:
        assert isinstance(refused(made, request("latest-only")), NoAvailableEngine)


def test_an_unhealthy_closed_engine_is_not_worth_waiting_for() -> None:
    made = fleet(row("only", gate=CLOSED))
    made.set_health(next(iter(made.engines())), False)
    assert isinstance(refused(made, request()), NoAvailableEngine)


def test_nobody_waits_where_hold_is_off() -> None:
    off = ROUND_ROBIN.hold.__class__(timeout=0)
    made = fleet(
        row("only", paused=True), settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, hold=off)
    )
    assert isinstance(refused(made, request()), NoAvailableEngine)


def test_a_503_counts_the_reasons_in_words_and_in_its_body() -> None:
    made = fleet(
        row("a", "9", released=("weights",)),
        row("b", "9", released=("kv_cache",)),
        row("c", "8"),
        row("d", None),
        fleet_max="9",
    )
    error = refused(made, request("latest-only"))
    assert isinstance(error, NoAvailableEngine)
    assert str(error) == (
        "no engine of pool qwen may take this request: 2 asleep, 1 stale, 1 unversioned "
        "(policy latest-only, fleet max 9)"
    )
    assert error.reasons == {"asleep": 2, "stale": 1, "unversioned": 1}
    assert error.retry_after == 1.0


def test_a_role_without_engines_is_said() -> None:
    made = fleet(row("a"))
    error = refused(made, request(role=Role.DECODE))
    assert str(error) == "no engine of pool qwen may take this request: it has none for decode"


def test_filter_totals_count_the_engines_of_the_role_by_reason() -> None:
    made = fleet(
        row("a", paused=True),
        row("b", "6"),
        row("c", "5"),
        row("d"),
        row("e", role=Role.PREFILL),
    )
    pool = made.pool(POOL)
    assert pool is not None
    eligible = pool.eligible(Role.PLAIN, LatestOnly())
    assert eligible.filtered == {Reason.PAUSED: 1, Reason.STALE: 2}
    assert [engine.id for engine in eligible.engines] == ["d"]
    assert eligible.mask == 0b01000
    assert eligible.waitable


def test_eligibility_is_computed_once_per_policy_until_something_changes() -> None:
    made = fleet(row("a"), row("b", "6"))
    pool = made.pool(POOL)
    assert pool is not None
    first = pool.eligible(Role.PLAIN, LatestOnly())
    assert pool.eligible(Role.PLAIN, LatestOnly()) is first
    assert made.observe(pool.engines[1], "7")
    second = pool.eligible(Role.PLAIN, LatestOnly())
    assert second is not first
    assert second.mask == 0b11


def test_remembered_policies_are_bounded_and_further_ones_still_right() -> None:
    made = fleet(row("a", "500"), row("b", "9000"), fleet_max="9000")
    pool = made.pool(POOL)
    assert pool is not None
    for floor in range(CACHED_POLICIES * 2):
        pool.eligible(Role.PLAIN, MinVersion(str(floor)))
    beyond = MinVersion("1000")
    assert pool.eligible(Role.PLAIN, beyond).mask == 0b10
    assert pool.eligible(Role.PLAIN, beyond) is not pool.eligible(Role.PLAIN, beyond)
    # The pool's own policy is always remembered.
    assert pool.eligible(Role.PLAIN, AnyVersion()) is pool.eligible(Role.PLAIN, AnyVersion())


def test_the_one_function_agrees_with_the_rules_in_words_for_every_combination() -> None:
    gates = [Gate(), CLOSED]
    controls = [
        {},
        {"paused": True},
        {"released": ("weights",)},
        {"paused": True, "released": ("kv_cache",)},
    ]
    checked = 0
    for (
        gate,
        control,
        trust,
        failed,
        healthy,
        version,
        fleet_max,
        admit,
        policy_text,
    ) in itertools.product(
        gates,
        controls,
        Trust,
        [False, True],
        [False, True],
        [None, "3", "7"],
        [None, "7"],
        [False, True],
        POLICIES,
    ):
        policy = parse_policy(policy_text)
        engine_row = row("x", version, gate=gate, trust=trust, failed=failed, **control)
        made = fleet(
            engine_row,
            settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, admit_unsynced=admit),
            fleet_max=fleet_max,
        )
        pool = made.pool(POOL)
        assert pool is not None
        engine = pool.engines[0]
        engine.healthy = healthy
        reason = reason_out(
            engine,
            fleet_max=fleet_max,
            order=pool.order,
            policy=policy,
            role=Role.PLAIN,
            settings=pool.settings,
        )
        expected = may_serve(
            engine_row,
            policy,
            fleet_max=fleet_max,
            version=version,
            trust=trust,
            healthy=healthy,
            admit_unsynced=admit,
        )
        possible = could_serve(
            engine_row,
            policy,
            fleet_max=fleet_max,
            trust=trust,
            healthy=healthy,
            admit_unsynced=admit,
        )
        closed = engine_row.paused or not engine_row.gate.open
        assert (reason is None) == expected
        assert (reason in WAITABLE) == (possible and closed)
        if possible and not closed and not expected:
            assert not accepts(policy, version=version, fleet_max=fleet_max)
        checked += 1
    assert checked == 2 * 4 * 4 * 2 * 2 * 3 * 2 * 2 * 5


def test_a_selection_carries_version_and_epoch_of_its_moment() -> None:
    made = fleet(row("a", "7"))
    before = selected(made, request())
    made.apply(table([row("a", "8")], fleet_max="8", seq=2))
    after = selected(made, request())
    assert (before.version, before.epoch) == ("7", Epoch(1, 1))
    assert (after.version, after.epoch) == ("8", Epoch(1, 2))
    assert before.engine is after.engine


def test_excluded_engines_are_not_tried_again() -> None:
    made = fleet(row("a"), row("b"), row("c", paused=True))
    assert outcomes(made, request(excluded=frozenset({"a"}))) == {"b"}
    # With all open ones excluded the paused one is still worth waiting for.
    lane = waits(made, request(excluded=frozenset({"a", "b"}))).lane
    assert lane.excluded == {"a", "b"}
    error = refused(made, request(excluded=frozenset({"a", "b", "c"})))
    assert isinstance(error, NoAvailableEngine)
    assert error.reasons == {"paused": 1, "excluded": 2}
    assert chosen(made, request()) in {"a", "b"}


def test_exclusions_are_ids_not_positions() -> None:
    made = fleet(row("a", paused=True))
    assert waits(made, request(excluded=frozenset({"0"}))).lane.excluded == {"0"}
