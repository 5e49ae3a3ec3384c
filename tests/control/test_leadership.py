"""Leaders that change, end and come back, over real sockets."""

import asyncio

from steersman.clock import MonotonicClock
from tests.control.support import Journal, World, fleet, row, table, until


async def test_a_hand_over_from_one_operator_to_another(place: World) -> None:
    first, second = Journal(), Journal()
    one = await place.server(first, term=1)
    two = await place.server(second, term=None)
    made = fleet(MonotonicClock())
    client = await place.client(*one.endpoints, *two.endpoints, made=made)
    one.publish(table(row("a"), term=1, seq=9), urgent=True)
    await first.until("acked", "pod", "1.9")

    one.follow(leader_hint="the other")
    two.lead(term=2, api_url="http://operator:2")
    two.publish(table(row("b"), term=2, seq=1), urgent=True)

    await second.until("acked", "pod", "2.1")
    assert client.api_url == "http://operator:2"
    assert client.status.leader == two.endpoints[0]
    assert client.status.reconnects == 1
    assert [engine.id for engine in made.engines()] == ["b"]


async def test_a_leader_that_does_not_know_that_it_was_deposed_is_told(place: World) -> None:
    first, second = Journal(), Journal()
    one = await place.server(first, term=1)
    two = await place.server(second, term=None)
    made = fleet(MonotonicClock())
    client = await place.client(*one.endpoints, *two.endpoints, made=made)
    one.publish(table(row("a"), term=1, seq=1), urgent=True)
    await first.until("acked", "pod", "1.1")
    two.lead(term=2, api_url="http://operator:2")
    two.publish(table(row("b"), term=2, seq=1), urgent=True)
    await second.until("acked", "pod", "2.1")

    one.publish(table(row("c"), term=1, seq=2), urgent=True)

    await first.until("max_term", 2)
    assert first.of("acked") == [("pod", "1.1")]
    assert client.status.leader == two.endpoints[0]
    assert [engine.id for engine in made.engines()] == ["b"]


async def test_a_leader_whose_term_is_too_low_is_told_before_it_sends_anything(
    place: World,
) -> None:
    first, second = Journal(), Journal()
    one = await place.server(first, term=7)
    made = fleet(MonotonicClock())
    one.publish(table(row("a"), term=7), urgent=True)
    two = await place.server(second, term=1)
    two.publish(table(row("b"), term=1), urgent=True)
    await place.client(*one.endpoints, made=made, uid="first")
    await first.until("acked", "first", "7.1")
    await place.client(*one.endpoints, *two.endpoints, made=fleet(MonotonicClock()))
    await first.until("acked", "pod", "7.1")

    await second.until("max_term", 7)
    two.lead(term=8, api_url="http://operator:2")
    two.publish(table(row("b"), term=8), urgent=True)

    await second.until("acked", "pod", "8.1")


async def test_after_a_restart_of_the_operator_the_table_stays_and_is_acknowledged_again(
    place: World,
) -> None:
    before, after = Journal(), Journal()
    one = await place.server(before, term=1)
    endpoint = one.endpoints[0]
    made = fleet(MonotonicClock())
    client = await place.client(endpoint, made=made)
    one.publish(table(row("a")), urgent=True)
    await before.until("acked", "pod", "1.1")

    await one.close()
    await until(lambda: client.status.leader is None, "the loss of the leader")
    assert [engine.id for engine in made.engines()] == ["a"]
    again = await place.server(after, endpoint, term=1)
    again.publish(table(row("a")), urgent=True)

    await after.until("acked", "pod", "1.1")
    status = client.status
    assert (status.applied, status.reconnects) == (1, 1)
    assert status.fresh


async def test_a_leader_that_was_elected_again_begins_anew(place: World, journal: Journal) -> None:
    server = await place.server(journal, term=1)
    server.publish(table(row("a")), urgent=True)
    await place.client(*server.endpoints)
    await journal.until("acked", "pod", "1.1")

    server.lead(term=2, api_url="http://operator:1")
    server.publish(table(row("a"), term=2), urgent=True)

    await journal.until("acked", "pod", "2.1")
    assert journal.of("joined") == [("pod",), ("pod",)]


async def test_out_of_contact_the_proxy_is_stale_after_the_grant_and_not_before(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal, grant=0.4)
    server.publish(table(row("a")), urgent=True)
    client = await place.client(*server.endpoints)
    await journal.until("heard", "pod", count=12)  # more than the grant
    assert client.fresh

    loop = asyncio.get_running_loop()
    await server.close()
    began = loop.time()

    await until(lambda: not client.fresh, "the end of the grant")
    # Counted from the last confirmed pong, at most some heartbeats ago.
    assert loop.time() - began < 0.45
    assert client.status.epoch is not None


async def test_an_operator_that_comes_later_is_found(place: World, journal: Journal) -> None:
    endpoint = place.ipc()
    await place.client(endpoint)

    server = await place.server(journal, endpoint)
    server.publish(table(row("a")), urgent=True)

    await journal.until("acked", "pod", "1.1")


async def test_names_are_looked_up_and_stand_for_all_their_addresses(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal, "tcp://127.0.0.1:*", insecure=True)
    server.publish(table(row("a")), urgent=True)
    port = server.endpoints[0].rpartition(":")[2]
    client = await place.client(f"tcp://localhost:{port}", insecure=True)

    await journal.until("acked", "pod", "1.1")

    assert client.status.leader == f"tcp://127.0.0.1:{port}"


async def test_a_name_that_does_not_resolve_is_no_error(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    await place.client("tcp://no-such-host.invalid:1", *server.endpoints, insecure=True)

    await journal.until("acked", "pod", "1.1")
