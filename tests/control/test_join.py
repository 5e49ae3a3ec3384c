"""From hello to an acknowledged table, over real sockets."""

import asyncio

import pytest

from steersman.clock import MonotonicClock
from steersman.table import Epoch
from tests.control.support import Journal, World, fleet, row, table, take, until


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
async def test_a_proxy_joins_and_acknowledges(
    place: World, journal: Journal, transport: str
) -> None:
    endpoint = place.ipc() if transport == "ipc" else "tcp://127.0.0.1:*"
    server = await place.server(journal, endpoint, insecure=True)
    server.publish(table(row("a")), urgent=False, peers=["http://other:1"])
    made = fleet(MonotonicClock())
    client = await place.client(*server.endpoints, made=made, insecure=True)

    await journal.until("acked", "pod", "1.1")

    assert made.view is not None
    assert made.view.epoch == Epoch(1, 1)
    assert client.api_url == "http://operator:1"
    assert client.peers == ("http://other:1",)
    assert client.fresh
    assert [entry[0] for entry in journal.entries[:2]] == ["joined", "acked"]


async def test_a_proxy_that_joins_before_the_first_table_gets_it_when_it_comes(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    await place.client(*server.endpoints)
    await journal.until("joined", "pod")

    server.publish(table(row("a")), urgent=False)

    await journal.until("acked", "pod", "1.1")


async def test_whoever_does_not_lead_turns_proxies_away_and_sends_no_table(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal, term=None)
    server.publish(table(row("a")), urgent=True)
    client = await place.client(*server.endpoints)

    await until(lambda: server.stats.rejects.get("not_leader", 0) >= 2, "two refusals")

    assert journal.entries == []
    assert client.api_url is None
    assert server.stats.snapshots == 0
    server.lead(term=1, api_url="http://operator:1")
    server.publish(table(row("a")), urgent=True)
    await journal.until("acked", "pod", "1.1")


async def test_an_acknowledged_table_is_in_force_for_every_later_choice(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a"), row("b")), urgent=True)
    made = fleet(MonotonicClock())
    await place.client(*server.endpoints, made=made)
    await journal.until("acked", "pod", "1.1")

    server.publish(table(row("a", open_=False), row("b"), seq=2), urgent=True)
    await journal.until("acked", "pod", "1.2")

    assert {take(made).engine.id for _ in range(10)} == {"b"}


async def test_watched_engines_are_reported_by_the_table_in_force_until_they_are_idle(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a"), row("b")), urgent=True)
    made = fleet(MonotonicClock())
    await place.client(*server.endpoints, made=made)
    await journal.until("acked", "pod", "1.1")
    running = [take(made, "a"), take(made, "a")]

    server.watch(["a", "stranger"])
    server.publish(table(row("a", open_=False), row("b"), seq=2), urgent=True)

    await journal.until("in_flight", "pod", "1.2", {"a": 2, "stranger": 0})
    running[0].guard.release()
    running[1].guard.release()
    await journal.until("in_flight", "pod", "1.2", {"a": 0, "stranger": 0})


async def test_a_zero_that_was_reported_before_the_table_is_reported_again_after_it(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    await place.client(*server.endpoints)
    await journal.until("acked", "pod", "1.1")
    server.watch(["a"])
    await journal.until("in_flight", "pod", "1.1", {"a": 0})

    server.publish(table(row("a", open_=False), seq=2), urgent=True)

    await journal.until("in_flight", "pod", "1.2", {"a": 0})


async def test_an_engine_that_left_the_table_counts_until_it_is_idle(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a"), row("b")), urgent=True)
    made = fleet(MonotonicClock())
    await place.client(*server.endpoints, made=made)
    await journal.until("acked", "pod", "1.1")
    running = take(made, "a")
    server.watch(["a"])

    server.publish(table(row("b"), seq=2), urgent=True)

    await journal.until("in_flight", "pod", "1.2", {"a": 1})
    running.guard.release()
    await journal.until("in_flight", "pod", "1.2", {"a": 0})


async def test_a_proxy_that_joins_later_is_told_what_is_watched(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    server.watch(["a"])
    await place.client(*server.endpoints)

    await journal.until("in_flight", "pod", "1.1", {"a": 0})


async def test_a_cut_reaches_the_proxy(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    await place.client(*server.endpoints)
    await journal.until("joined", "pod")

    server.cut("a", "drain timeout")

    await until(lambda: place.cuts == [("a", "drain timeout")], "the cut")


async def test_a_leaving_proxy_says_so_and_reports_until_it_is_idle(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    server.watch(["a"])
    made = fleet(MonotonicClock())
    client = await place.client(*server.endpoints, made=made)
    await journal.until("acked", "pod", "1.1")
    running = take(made, "a")

    client.leave("shutting down")
    await journal.until("in_flight", "pod", "1.1", {"a": 1})
    assert server.stats.sessions[0].leaving
    journal.clear()
    running.guard.release()
    # The last words get out even if the end comes within the same turn of the loop.
    await client.close()

    await journal.until("in_flight", "pod", "1.1", {"a": 0})
    await journal.until("lost", "pod")


async def test_the_routing_loop_answers_pings(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    await place.client(*server.endpoints)

    await journal.until("heard", "pod", count=3)

    (session,) = server.stats.sessions
    assert not session.lost
    assert session.loop_lag < 5


async def test_many_proxies_have_the_same_table(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    fleets = [fleet(MonotonicClock()) for _ in range(8)]
    for number, made in enumerate(fleets):
        await place.client(*server.endpoints, made=made, uid=f"pod-{number}")

    server.publish(table(row("a")), urgent=True)

    await asyncio.gather(*(journal.until("acked", f"pod-{n}", "1.1") for n in range(8)))
    assert server.stats.tables == 1
    assert server.stats.snapshots >= 8


async def test_a_table_of_4096_engines(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    made = fleet(MonotonicClock())
    await place.client(*server.endpoints, made=made)

    server.publish(table(*(row(f"engine-{n}") for n in range(4096))), urgent=True)

    await journal.until("acked", "pod", "1.1")
    assert len(list(made.engines())) == 4096


async def test_a_table_that_no_proxy_could_read_is_not_sent(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    await place.client(*server.endpoints)
    await journal.until("acked", "pod", "1.1")

    server.publish(table(*(row(f"engine-{n}") for n in range(4097)), seq=2), urgent=True)
    server.publish(table(row("a"), row("a"), seq=3), urgent=True)

    assert server.stats.unsendable == 2
    assert server.stats.epoch == Epoch(1, 1)


async def test_other_addresses_of_proxies_are_told_with_the_same_table(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    client = await place.client(*server.endpoints)
    server.publish(table(row("a")), urgent=True)
    await journal.until("acked", "pod", "1.1")

    server.publish(table(row("a")), urgent=True, peers=["http://other:1"])

    await until(lambda: client.peers == ("http://other:1",), "the address")
