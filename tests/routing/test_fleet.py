"""What survives a table, what an engine's own report changes, and where requests are counted."""

from typing import Any

import pytest

from steersman.engine import Role, Trust
from steersman.errors import (
    ModelNotFound,
    ModelRequired,
    NoAvailableEngine,
    NoTable,
    TargetUnavailable,
)
from steersman.policy import AnyVersion, LatestOnly, parse_policy
from steersman.settings import PoolSettings, RoutingPolicy
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from tests.routing.support import (
    CLOSED,
    POOL,
    chosen,
    fleet,
    outcomes,
    refused,
    request,
    row,
    selected,
    table,
)


def engine(made: Fleet, name: str) -> Engine:
    return next(engine for engine in made.engines() if engine.id == name)


# --- Loads and identity ----------------------------------------------------------------------------


def test_a_request_is_counted_from_selection_to_its_first_release() -> None:
    made = fleet(row("a"))
    result = selected(made, request())
    load = engine(made, "a").load
    assert (load.requests, load.total) == (1, 1)
    assert not result.guard.released
    result.guard.release()
    result.guard.release()
    assert result.guard.released
    assert (load.requests, load.total) == (0, 1)


def test_identity_and_load_survive_a_table() -> None:
    made = fleet(row("a"), row("b"))
    before = engine(made, "a")
    held = selected(made, request(target="a"))
    made.apply(table([row("b"), row("a", "8")], fleet_max="8", seq=2))
    after = engine(made, "a")
    assert after is before
    assert (after.version, after.index, after.load.requests) == ("8", 1, 1)
    held.guard.release()
    assert after.load.requests == 0


def test_an_engine_that_returns_finds_its_requests_counted() -> None:
    made = fleet(row("a"), row("b"))
    held = [selected(made, request(target="a")) for _ in range(3)]
    left = engine(made, "a")
    made.apply(table([row("b")], seq=2))
    assert [known.id for known in made.engines()] == ["b"]
    held[0].guard.release()
    assert left.load.requests == 2
    made.apply(table([row("a"), row("b")], seq=3))
    assert engine(made, "a") is left
    assert left.load.requests == 2
    held[1].guard.release()
    assert left.load.requests == 1


def test_an_engine_that_left_is_forgotten_with_its_last_request() -> None:
    made = fleet(row("a"), row("b"))
    held = selected(made, request(target="a"))
    left = engine(made, "a")
    made.apply(table([row("b")], seq=2))
    held.guard.release()
    made.apply(table([row("a"), row("b")], seq=3))
    assert engine(made, "a") is not left
    assert engine(made, "a").load.total == 0


def test_another_url_is_another_engine() -> None:
    made = fleet(row("a"))
    held = selected(made, request())
    old = engine(made, "a")
    made.set_health(old, False)
    made.apply(table([row("a", url="http://elsewhere:1")], seq=2))
    new = engine(made, "a")
    assert new is not old
    assert new.load is not old.load
    assert new.healthy
    assert new.load.requests == 0
    held.guard.release()
    assert (old.load.requests, new.load.requests) == (0, 0)


def test_health_stays_with_an_engine_that_stays_and_not_with_one_that_left() -> None:
    made = fleet(row("a"), row("b"))
    held = selected(made, request(target="a"))
    made.set_health(engine(made, "a"), False)
    made.apply(table([row("a"), row("b")], seq=2))
    assert not engine(made, "a").healthy
    made.apply(table([row("b")], seq=3))
    made.apply(table([row("a"), row("b")], seq=4))
    assert engine(made, "a").healthy
    held.guard.release()


def test_an_engine_may_change_its_pool_with_requests_in_flight() -> None:
    pools = [
        PoolRow(name="p", settings=PoolSettings(policy=RoutingPolicy.LOAD_ONLY)),
        PoolRow(name="q", settings=PoolSettings(policy=RoutingPolicy.LOAD_ONLY)),
    ]
    made = fleet()
    made.apply(table([row("a", pool="p"), row("b", pool="q")], pools=pools))
    held = [selected(made, request(pool="p")) for _ in range(2)]
    made.apply(table([row("b", pool="q"), row("a", pool="q")], pools=pools, seq=2))
    assert chosen(made, request(pool="q")) == "b"
    for result in held:
        result.guard.release()
    assert {chosen(made, request(pool="q")) for _ in range(2)} == {"a", "b"}


def test_capacity_hook_is_called_once_per_request() -> None:
    made = fleet(row("a"))
    calls: list[int] = []
    made.on_capacity = lambda: calls.append(engine(made, "a").load.requests)
    results = [selected(made, request()) for _ in range(2)]
    for result in results * 2:
        result.guard.release()
    assert calls == [1, 0]


# --- Reports of the engines themselves -------------------------------------------------------------


def test_a_report_overlays_the_row_until_the_next_table() -> None:
    made = fleet(row("a"), row("b"))
    changes: list[str] = []
    made.on_change.append(lambda: changes.append("changed"))
    ahead = engine(made, "a")
    assert made.observe(ahead, "8")
    assert not made.observe(ahead, "8")
    assert selected(made, request(target="a")).version == "8"
    assert ahead.overlaid
    assert changes == ["changed"]
    made.apply(table([row("a"), row("b")], seq=2))
    assert ahead.version == "7"
    assert not ahead.overlaid


def test_a_report_never_moves_the_fleet_max() -> None:
    made = fleet(row("a"), row("b"))
    made.observe(engine(made, "a"), "99")
    pool = made.pool(POOL)
    assert pool is not None
    assert pool.fleet_max == "7"
    # Neither is the one ahead out, nor are the others stale.
    assert outcomes(made, request("latest-only")) == {"a", "b"}
    made.observe(engine(made, "b"), "6")
    assert outcomes(made, request("latest-only")) == {"a"}
    assert pool.fleet_max == "7"


def test_a_report_that_agrees_with_the_row_ends_the_overlay() -> None:
    made = fleet(row("a"))
    one = engine(made, "a")
    assert not made.observe(one, "7")
    assert made.observe(one, "6")
    assert made.observe(one, "7")
    assert not one.overlaid


def test_another_spelling_of_the_rows_number_is_no_news() -> None:
    made = fleet(row("a", "42"), fleet_max="42")
    one = engine(made, "a")
    assert not made.observe(one, "042")
    assert one.version == "42"
    assert made.observe(one, "43")
    assert made.observe(one, "0042")
    assert one.version == "42"


def test_default_from_an_engine_that_had_a_version_means_it_restarted() -> None:
    made = fleet(row("a"), row("b"))
    one = engine(made, "a")
    made.observe(one, "7")
    assert made.observe(one, None, seen_default=True)
    assert (one.version, one.trust) == (None, Trust.UNSYNCED)
    assert outcomes(made, request("any")) == {"b"}
    # It shows its weights again.
    assert made.observe(one, "7")
    assert not one.overlaid
    assert outcomes(made, request("any")) == {"a", "b"}


@pytest.mark.parametrize("said", ["7", "8", None])
@pytest.mark.parametrize("fleet_max", ["7", None])
def test_half_written_weights_stay_so_whatever_the_engine_says(
    said: str | None, fleet_max: str | None
) -> None:
    torn = row("a", "6", trust=Trust.UNCERTAIN)
    made = fleet(
        torn,
        fleet_max=fleet_max,
        settings=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, admit_unsynced=True),
    )
    one = engine(made, "a")
    made.observe(one, "7")

    made.observe(one, said, seen_default=said is None)

    assert (one.version, one.trust) == (said, Trust.UNCERTAIN)
    for policy in ("any", "latest-only"):
        assert isinstance(refused(made, request(policy)), NoAvailableEngine)
        assert isinstance(refused(made, request(policy, target="a")), TargetUnavailable)
    made.apply(table([row("a", "8")], fleet_max="8", seq=2))
    assert outcomes(made, request()) == {"a"}


@pytest.mark.parametrize(
    ("changes", "barred"),
    [
        ({}, False),
        ({"gate": CLOSED}, False),
        ({"paused": True}, False),
        ({"version": "6"}, False),
        ({"trust": Trust.UNCERTAIN, "gate": CLOSED}, True),
        ({"trust": Trust.UNSYNCED, "version": None}, True),
        ({"trust": Trust.UNKNOWN, "version": None}, True),
    ],
)
def test_what_was_chosen_is_sent_unless_nobody_vouches_for_the_weights_any_more(
    changes: dict[str, Any], barred: bool
) -> None:
    made = fleet(row("a"))
    held = selected(made, request())
    made.apply(table([row("a", **changes)], seq=2))

    assert made.barred(held.engine, None) is barred

    made.apply(table([], seq=3))
    assert not made.barred(held.engine, None), "it is gone, and nobody says what it has"
    held.guard.release()


def test_a_pool_that_admits_unsynced_engines_bars_them_from_strict_requests_alone() -> None:
    settings = PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, admit_unsynced=True)
    made = fleet(row("a", None, trust=Trust.UNSYNCED), settings=settings)
    one = engine(made, "a")

    assert not made.barred(one, None)
    assert not made.barred(one, parse_policy("any"))
    assert made.barred(one, parse_policy("latest-only"))


def test_a_plain_relay_bars_nobody() -> None:
    made = fleet(row("a", trust=Trust.UNCERTAIN), rl_enabled=False)
    assert not made.barred(engine(made, "a"), None)


def test_default_from_an_engine_that_never_showed_a_version_means_nothing() -> None:
    made = fleet(row("a"), row("b"))
    one = engine(made, "a")
    assert not made.observe(one, None, seen_default=True)
    assert one.version == "7"


def test_what_was_seen_before_an_engine_left_proves_nothing_when_it_returns() -> None:
    made = fleet(row("a"), row("b"))
    held = selected(made, request(target="a"))
    made.observe(engine(made, "a"), "7")
    made.apply(table([row("b")], seq=2))
    made.apply(table([row("a"), row("b")], seq=3))
    assert not made.observe(engine(made, "a"), None, seen_default=True)
    held.guard.release()


def test_no_report_changes_nothing() -> None:
    made = fleet(row("a"))
    one = engine(made, "a")
    made.observe(one, "8")
    assert not made.observe(one, None)
    assert one.version == "8"


def test_what_was_seen_of_an_old_process_proves_nothing_about_a_new_one() -> None:
    made = fleet(row("a", boot_id="one"))
    one = engine(made, "a")
    made.observe(one, "7")
    made.apply(table([row("a", boot_id="two")], seq=2))
    assert not made.observe(one, None, seen_default=True)
    assert one.version == "7"


def test_a_report_of_an_engine_that_left_is_harmless() -> None:
    made = fleet(row("a"), row("b"))
    left = engine(made, "a")
    made.apply(table([row("b")], seq=2))
    made.observe(left, "9")
    made.set_health(left, False)
    assert outcomes(made, request()) == {"b"}


# --- Tables ----------------------------------------------------------------------------------------


def test_before_the_first_table_there_is_no_table() -> None:
    made = fleet()
    assert made.view is None
    assert isinstance(refused(made, request()), NoTable)


def test_an_unknown_pool_is_not_found() -> None:
    error = refused(fleet(row("a")), request(pool="other"))
    assert isinstance(error, ModelNotFound)
    assert error.status == 404


def test_a_models_pool_is_found_by_name_or_by_being_the_only_or_default_one() -> None:
    made = fleet()
    first = PoolRow(name="p", models=("m", "alias"))
    second = PoolRow(name="q", models=("n",))
    made.apply(Table(epoch=Epoch(1, 1), pools=(first,)))
    assert made.view is not None
    assert made.view.single_pool is made.view.pool_of_model(None)
    made.apply(Table(epoch=Epoch(1, 2), pools=(first, second)))
    assert made.view.single_pool is None
    assert made.view.pool_of_model("alias").name == "p"
    assert made.view.pool_of_model("n").name == "q"
    with pytest.raises(ModelRequired):
        made.view.pool_of_model(None)
    with pytest.raises(ModelNotFound, match="'x'"):
        made.view.pool_of_model("x")
    default = PoolRow(name="q", models=("n",), default=True)
    made.apply(Table(epoch=Epoch(1, 3), pools=(first, default)))
    assert made.view.pool_of_model(None).name == "q"


def test_an_empty_table_has_no_model() -> None:
    made = fleet()
    made.apply(Table(epoch=Epoch(1, 1)))
    assert made.view is not None
    with pytest.raises(ModelNotFound):
        made.view.pool_of_model(None)


def test_of_contradicting_rows_the_first_counts() -> None:
    made = fleet()
    made.apply(
        Table(
            epoch=Epoch(1, 1),
            pools=(
                PoolRow(name="p", models=("m",)),
                PoolRow(name="q", models=("m",)),
                PoolRow(name="p", models=("other",)),
            ),
            engines=(
                row("a", pool="p"),
                row("a", pool="q", url="http://again:1"),
                row("b", pool="nowhere"),
                row("c", pool="q", url="http://a:8000"),
            ),
        )
    )
    assert made.view is not None
    assert made.view.pool_of_model("m").name == "p"
    assert [known.id for known in made.engines()] == ["a", "c"]
    loads = {id(known.load) for known in made.engines()}
    assert len(loads) == 2


def test_settings_come_from_the_row_else_the_configuration_else_the_defaults() -> None:
    own = PoolSettings(policy=RoutingPolicy.RANDOM)
    configured = PoolSettings(version_policy=LatestOnly())
    made = fleet(pool_settings={"p": configured, "q": configured})
    made.apply(
        Table(
            epoch=Epoch(1, 1),
            pools=(PoolRow(name="p", settings=own), PoolRow(name="q"), PoolRow(name="r")),
        )
    )
    got = [pool.settings for pool in (made.pool(name) for name in "pqr") if pool is not None]
    assert got[:2] == [own, configured]
    assert got[2].policy is RoutingPolicy.ROUND_ROBIN


def test_pools_do_not_see_each_others_versions_or_engines() -> None:
    made = fleet()
    made.apply(
        Table(
            epoch=Epoch(1, 1),
            pools=(PoolRow(name="p", fleet_max="9"), PoolRow(name="q", fleet_max="3")),
            engines=(row("a", "9", pool="p"), row("b", "3", pool="q")),
        )
    )
    assert outcomes(made, request("latest-only", pool="p")) == {"a"}
    assert outcomes(made, request("latest-only", pool="q")) == {"b"}
    pool = made.pool("q")
    assert pool is not None
    assert [one.id for one in pool.eligible(Role.PLAIN, AnyVersion()).engines] == ["b"]


def test_after_apply_nothing_is_selected_by_an_older_table() -> None:
    made = fleet(row("a"), row("b"))
    seen: list[set[str]] = []
    made.on_change.append(lambda: seen.append(outcomes(made, request(), count=6)))
    made.apply(table([row("a", paused=True), row("b")], seq=2))
    assert seen == [{"b"}]
