"""Watching a table file: what changes it, and what must not."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from steersman.clock import FakeClock
from steersman.errors import DocumentError
from steersman.table import Epoch, Table
from steersman_proxy.tablefile import TableWatcher


def content(*versions: int, comment: str = "") -> str:
    lines = [f"# {comment}", "pools:", "- name: p", "  engines:"]
    lines += [
        f"  - {{id: e{place}, url: 'http://e{place}', weightVersion: {version}}}"
        for place, version in enumerate(versions)
    ]
    return "\n".join(lines) + "\n"


class Watched:
    """A watched file, and what its watcher said. ``put`` replaces the file by rename."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "table.yaml"
        self.tables: list[Table] = []
        self.errors: list[DocumentError] = []
        self.recovered = 0
        self.news = asyncio.Event()
        self.clock = FakeClock()
        self.watcher = TableWatcher(
            self.path,
            on_table=self._take,
            on_error=self._regret,
            on_recovered=self._recover,
            poll=0.001,
            clock=self.clock,
        )

    def _take(self, table: Table) -> None:
        self.tables.append(table)
        self.news.set()

    def _regret(self, error: DocumentError) -> None:
        self.errors.append(error)
        self.news.set()

    def _recover(self) -> None:
        self.recovered += 1

    def put(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    async def check(self) -> None:
        await self.watcher.check()

    async def next_news(self) -> None:
        """Wait until the watcher says something."""
        async with asyncio.timeout(10):
            await self.news.wait()
        self.news.clear()

    @property
    def versions(self) -> list[str | None]:
        table = self.watcher.table
        assert table is not None
        return [row.version for row in table.engines]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_the_first_read(watched: Watched) -> None:
    watched.put(content(7))

    table = await watched.watcher.first()

    assert table.epoch == Epoch(0, 1)
    assert watched.tables == [table]
    assert watched.watcher.status.loads == 1
    assert watched.watcher.status.problems == ()


async def test_a_bad_first_file_is_an_error(watched: Watched) -> None:
    with pytest.raises(DocumentError, match="does not exist"):
        await watched.watcher.first()
    watched.put("pools: 7\n")
    with pytest.raises(DocumentError, match=r"table\.yaml:1: pools: must be a list"):
        await watched.watcher.first()
    assert watched.watcher.status.epoch is None

    watched.put(content(7))
    await watched.check()
    assert watched.versions == ["7"]


async def test_a_changed_file_is_a_new_table(watched: Watched) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.put(content(8))
    await watched.check()

    assert watched.versions == ["8"]
    assert [table.epoch.seq for table in watched.tables] == [1, 2]


async def test_an_untouched_file_is_not_read_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    await watched.check()

    def refuse(*_: object) -> bytes:
        raise AssertionError("the file was read again")

    monkeypatch.setattr("steersman_proxy.tablefile.watch.read_content", refuse)
    await watched.check()
    await watched.check()


async def test_a_change_of_comments_is_no_new_table(watched: Watched) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.put(content(7, comment="another one"))
    await watched.check()

    assert len(watched.tables) == 1
    assert watched.watcher.status.loads == 2


async def test_a_bad_file_keeps_the_last_good_and_is_told_once(watched: Watched) -> None:
    watched.put(content(7))
    good = await watched.watcher.first()
    watched.put("pools:\n- name: p\n  engine: []\n")
    for _ in range(3):
        await watched.check()
    os.utime(watched.path, (1, 1))
    for _ in range(3):
        await watched.check()

    problem = f"{watched.path}:3: pools[0].engine: unknown key `engine`; did you mean `engines`?"
    assert [error.problems for error in watched.errors] == [[problem]]
    assert watched.watcher.table is good
    status = watched.watcher.status
    assert (status.problems, status.failures, status.epoch) == ((problem,), 1, Epoch(0, 1))

    watched.put("pools: nonsense\n")
    await watched.check()
    assert len(watched.errors) == 2


async def test_a_repaired_file_recovers(watched: Watched) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.put("{")
    await watched.check()
    watched.put(content(7))
    await watched.check()

    # The table is the one that stayed in force all the time.
    assert len(watched.tables) == 1
    assert watched.recovered == 1
    assert watched.watcher.status.problems == ()

    watched.put("{")
    await watched.check()
    watched.put(content(8))
    await watched.check()
    assert watched.recovered == 2
    assert watched.versions == ["8"]


async def test_a_bad_file_does_not_advance_gates_or_the_newest_version(watched: Watched) -> None:
    def engine(gate: str, version: str, more: str = "") -> str:
        return (
            "pools:\n- name: p\n  engines:\n"
            f"  - {{url: 'http://a', gate: {gate}, weightVersion: {version}{more}}}\n"
        )

    watched.put(engine("open", "7"))
    await watched.watcher.first()
    # Were these taken in spite of their mistake, the gate would be at 2 and the max at 8.
    watched.put(engine("closed", "7", ", mistake: 1"))
    await watched.check()
    watched.put(engine("open", "8", ", mistake: 1"))
    await watched.check()
    watched.put(engine("closed", "7"))
    await watched.check()

    table = watched.watcher.table
    assert table is not None
    assert table.epoch == Epoch(0, 2)
    assert table.engines[0].gate.count == 1
    assert table.pools[0].fleet_max == "7"


async def test_a_vanished_file_keeps_the_last_good(watched: Watched) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.path.unlink()
    for _ in range(3):
        await watched.check()

    assert [error.problems for error in watched.errors] == [
        [f"{watched.path}: does not exist; check the path"]
    ]
    assert watched.versions == ["7"]

    watched.put(content(7))
    await watched.check()
    assert watched.recovered == 1
    assert watched.watcher.status.problems == ()


async def test_a_link_that_gets_another_target_is_a_change(tmp_path: Path) -> None:
    """As in a mounted ConfigMap: table.yaml -> ..data/table.yaml, ..data -> a dated directory."""
    dated = [tmp_path / "..2024_01", tmp_path / "..2024_02"]
    for directory, version in zip(dated, (7, 8), strict=True):
        directory.mkdir()
        (directory / "table.yaml").write_text(content(version))
        os.utime(directory / "table.yaml", (1_700_000_000, 1_700_000_000))
    (tmp_path / "..data").symlink_to(dated[0].name)
    watched = Watched(tmp_path)
    watched.path.symlink_to("..data/table.yaml")
    await watched.watcher.first()
    await watched.check()

    (tmp_path / "..data_tmp").symlink_to(dated[1].name)
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    await watched.check()

    assert watched.versions == ["8"]


async def test_a_change_within_one_tick_of_the_file_systems_clock_is_seen(
    watched: Watched,
) -> None:
    """Same inode, size and time as when it was read; only a second reading can tell."""
    watched.path.write_text(content(7))
    os.utime(watched.path, (1_700_000_000, 1_700_000_000))
    await watched.watcher.first()
    with watched.path.open("r+") as file:
        file.write(content(8))
    os.utime(watched.path, (1_700_000_000, 1_700_000_000))
    await watched.check()

    assert watched.versions == ["8"]


async def test_a_cancelled_look_is_as_if_it_had_not_been(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.put(content(8))
    prepare = TableWatcher._prepare
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self: TableWatcher, data: bytes) -> object:
        loop.call_soon_threadsafe(entered.set)
        return prepare(self, data)

    monkeypatch.setattr(TableWatcher, "_prepare", slow)
    look = asyncio.create_task(watched.check())
    await entered.wait()
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert watched.versions == ["7"]

    await watched.check()
    assert watched.versions == ["8"]


async def test_running_follows_the_file_until_cancelled(watched: Watched) -> None:
    watched.put(content(7))
    running = asyncio.create_task(watched.watcher.run())
    try:
        await watched.next_news()
        watched.put("{")
        await watched.next_news()
        watched.put(content(8, 8))
        await watched.next_news()
    finally:
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert watched.versions == ["8", "8"]
    assert (len(watched.tables), len(watched.errors), watched.recovered) == (2, 1, 1)


async def test_the_age_of_the_table_is_on_the_injected_clock(watched: Watched) -> None:
    watched.put(content(7))
    await watched.watcher.first()
    watched.clock.advance(5)
    watched.put("{")
    await watched.check()

    assert watched.watcher.status.loaded_at == 1000.0


async def test_reading_a_thousand_engines_leaves_the_loop_alone(watched: Watched) -> None:
    """Most turns of the loop must not notice; one may wait for the interpreter's switch."""
    watched.put(content(*range(1000)))
    waits: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - before - 0.001)

    ticking = asyncio.create_task(tick())
    await watched.watcher.first()
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking

    assert len(watched.versions) == 1000
    waits.sort()
    assert len(waits) > 20
    assert waits[len(waits) // 2] < 0.02
