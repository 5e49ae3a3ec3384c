"""Keys: who has none, or a wrong one, does not get a word in."""

import pytest
import zmq

from steersman.clock import MonotonicClock
from steersman.curve_keys import read_curve_key
from steersman_operator.control import ControlServer, Security
from steersman_proxy.control import ClientSecurity, ControlClient
from tests.control.support import Journal, World, fleet, row, table, until


class Keys:
    """One server's and one client's pair."""

    def __init__(self) -> None:
        self.server_public, self.server_secret = _pair()
        self.client_public, self.client_secret = _pair()

    @property
    def server(self) -> Security:
        return Security(secret_key=self.server_secret, client_keys=frozenset({self.client_public}))

    @property
    def client(self) -> ClientSecurity:
        return ClientSecurity(server_key=self.server_public, secret_key=self.client_secret)


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


async def serve(place: World, journal: Journal, keys: Keys) -> ControlServer:
    server = await place.server(journal, "tcp://127.0.0.1:*", security=keys.server)
    server.publish(table(row("a")), urgent=True)
    return server


async def test_with_the_right_keys_all_is_as_without(place: World, journal: Journal) -> None:
    keys = Keys()
    server = await serve(place, journal, keys)
    await place.client(*server.endpoints, security=keys.client)

    await journal.until("acked", "pod", "1.1")

    assert server.stats.sessions[0].address == "127.0.0.1"
    assert server.refused_keys == 0


async def test_several_proxies_may_share_a_key(place: World, journal: Journal) -> None:
    keys = Keys()
    server = await serve(place, journal, keys)
    for uid in ("one", "two"):
        await place.client(*server.endpoints, uid=uid, security=keys.client)

    await journal.until("acked", "one", "1.1")
    await journal.until("acked", "two", "1.1")


async def test_a_client_key_that_is_not_let_in(place: World, journal: Journal) -> None:
    keys, others = Keys(), Keys()
    server = await serve(place, journal, keys)
    wrong = ClientSecurity(server_key=keys.server_public, secret_key=others.client_secret)
    client = await place.client(*server.endpoints, security=wrong)

    await until(lambda: "keys match" in client.status.links[0].detail, "the refusal")

    assert server.refused_keys >= 1
    assert journal.entries == []
    assert client.status.epoch is None


async def test_a_wrong_server_key(place: World, journal: Journal) -> None:
    keys, others = Keys(), Keys()
    server = await serve(place, journal, keys)
    wrong = ClientSecurity(server_key=others.server_public, secret_key=keys.client_secret)
    await place.client(*server.endpoints, uid="wrong", security=wrong)
    await place.client(*server.endpoints, uid="right", security=keys.client)

    await journal.until("acked", "right", "1.1")

    assert {entry[1] for entry in journal.entries} == {"right"}


async def test_no_key_at_all(place: World, journal: Journal) -> None:
    keys = Keys()
    server = await serve(place, journal, keys)
    await place.client(*server.endpoints, uid="bare", insecure=True)
    await place.client(*server.endpoints, uid="right", security=keys.client)

    await journal.until("acked", "right", "1.1")

    assert {entry[1] for entry in journal.entries} == {"right"}


async def test_two_servers_in_one_process_have_keys_of_their_own(place: World) -> None:
    first, second = Journal(), Journal()
    one_keys, two_keys = Keys(), Keys()
    one = await serve(place, first, one_keys)
    two = await serve(place, second, two_keys)
    await place.client(*one.endpoints, security=one_keys.client)
    await place.client(*two.endpoints, security=two_keys.client)

    await first.until("acked", "pod", "1.1")
    await second.until("acked", "pod", "1.1")


def test_tcp_without_keys_must_be_said() -> None:
    clock = MonotonicClock()
    with pytest.raises(ValueError, match="needs keys"):
        ControlServer(Journal(), clock=clock, endpoints=["ipc:///x", "tcp://127.0.0.1:1"])
    with pytest.raises(ValueError, match="needs keys"):
        ControlClient(
            fleet(clock),
            addresses=["tcp://127.0.0.1:1"],
            uid="p",
            boot="b",
            clock=clock,
            cut=lambda *_: None,
        )


async def test_tcp_without_keys_is_loud(
    place: World, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    server = await place.server(journal, "tcp://127.0.0.1:*", insecure=True)
    await place.client(*server.endpoints, insecure=True)

    loud = [record for record in caplog.records if "INSECURE" in record.getMessage()]
    assert len(loud) == 2


async def test_an_address_that_is_taken_is_named(place: World, journal: Journal) -> None:
    server = await place.server(journal, "tcp://127.0.0.1:*", insecure=True)

    with pytest.raises(OSError, match=f"cannot bind {server.endpoints[0]}"):
        await place.server(journal, *server.endpoints, insecure=True)


def test_keys_show_themselves_to_nobody() -> None:
    keys = Keys()
    for shown in (repr(keys.server), repr(keys.client)):
        assert keys.server_secret not in shown
        assert keys.client_secret not in shown


def test_a_key_file_holds_one_key(tmp_path) -> None:
    public, _ = _pair()
    good = tmp_path / "good"
    # Z85 has characters that begin comments and quotes elsewhere.
    good.write_text("#" + public[1:] + "\n")
    assert read_curve_key(good) == "#" + public[1:]

    for name, content in (("short", public[1:]), ("two", public + public), ("odd", "é" * 40)):
        bad = tmp_path / name
        bad.write_text(content)
        with pytest.raises(ValueError, match="not a CURVE key") as caught:
            read_curve_key(bad)
        assert content not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_curve_key(tmp_path / "none")
