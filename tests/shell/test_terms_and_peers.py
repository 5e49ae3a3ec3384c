"""What the shell tells whoever wires it, and what it asks: later terms, the other proxies."""

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from steersman.clock import FakeClock
from steersman.table import Table
from steersman_operator.fleet.events import Elected, ProxiesRequired, SpecChanged
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell


class Publisher:
    def __init__(self) -> None:
        self.published: list[tuple[Table, tuple[str, ...]]] = []

    def publish(self, table: Table, *, urgent: bool, peers: Sequence[str] = ()) -> None:
        self.published.append((table, tuple(peers)))

    def watch(self, engines: Sequence[str]) -> None:
        pass

    def cut(self, engine: str, reason: str) -> None:
        pass


def leading(store: FileStore) -> tuple[FleetShell, Publisher]:
    """An operator of a pool without engines, in its first term."""
    term, durable = store.open()
    shell = FleetShell(clock=FakeClock(), engines=mock.Mock(), store=store, timing=Timing())
    shell.publisher = publisher = Publisher()
    shell.feed(Elected(now=shell.now, term=term, durable=durable))
    shell.feed(ProxiesRequired(now=shell.now, proxies=()))
    return shell, publisher


def want(shell: FleetShell, name: str) -> None:
    pool = PoolSpec(name=name, models=(name,))
    shell.feed(SpecChanged(now=shell.now, pools=(pool,)))


def test_each_table_names_the_other_proxies_as_they_are_then(tmp_path: Path) -> None:
    shell, publisher = leading(FileStore(tmp_path / "state.json"))
    want(shell, "a")
    peers = ["http://127.0.0.1:29000"]
    shell.peers = lambda: peers
    want(shell, "b")
    peers.append("http://127.0.0.1:29001")
    want(shell, "c")

    assert [told for _, told in publisher.published] == [(), tuple(peers[:1]), tuple(peers)]


def test_a_later_term_is_told_once_it_is_later_than_ours(tmp_path: Path) -> None:
    shell, _ = leading(FileStore(tmp_path / "state.json"))
    told: list[int] = []
    shell.max_term_seen(9)  # nobody to tell
    shell.on_later_term = told.append
    shell.max_term_seen(1)
    shell.max_term_seen(4)

    assert told == [4]


def test_whoever_gets_a_later_term_leads_on_under_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    shell, publisher = leading(store)
    want(shell, "a")

    def overtake(term: int) -> None:
        begun, durable = store.advance(term)
        shell.feed(Elected(now=shell.now, term=begun, durable=durable))

    shell.on_later_term = overtake
    shell.max_term_seen(4)
    shell.max_term_seen(4)

    assert [table.epoch.term for table, _ in publisher.published] == [1, 5]
    assert FileStore(tmp_path / "state.json").open()[0] == 6
