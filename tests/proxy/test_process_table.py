"""The proxy as a process, with a table file under its feet."""

import asyncio
import json
from pathlib import Path

from steersman_sim.engine import SimEngine
from tests.proxy.process import BAD_TABLES, GOOD, proxy, row, run
from tests.proxy.support import TableFile, until

# --- the table file -----------------------------------------------------------------------------------


def replace(path: Path, content: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(content)
    draft.rename(path)


async def test_a_bad_table_at_the_start_says_file_line_and_key_and_exits_1(tmp_path: Path) -> None:
    async def start(name: str, content: str, wanted: list[str]) -> None:
        place = tmp_path / name
        place.mkdir()
        path = place / "table.yaml"
        path.write_text(content)
        code, out, err = await run(
            place, "proxy", "--table", "table.yaml", "--port", "0", "--metrics-port", "0"
        )
        assert (code, out) == (1, "")
        # Each problem once, from the command itself.
        lines = err.removeprefix("steersman proxy: ").splitlines()
        assert len(lines) == len(wanted), err
        for line, words in zip(lines, wanted, strict=True):
            assert line.startswith(f"{path}{words}")

    names = ("not YAML", "an unknown key", "another kind of file")
    await asyncio.gather(*(start(name, *BAD_TABLES[name]) for name in names))


async def test_a_bad_table_later_keeps_the_last_good_one(tmp_path: Path, table: TableFile) -> None:
    async with proxy(tmp_path, table.path) as served:
        epoch = (await served.page())["table"]["epoch"]
        said = []
        for count, (content, wanted) in enumerate(BAD_TABLES.values(), 1):
            replace(table.path, content)
            await served.becomes(lambda page, count=count: page["table"]["failures"] == count)  # type: ignore[misc]

            page = await served.page()
            lines = page["table"]["last_error"].splitlines()
            assert len(lines) == len(wanted)
            for line, words in zip(lines, wanted, strict=True):
                assert line.startswith(f"{table.path}{words}")
            said += lines
            assert page["table"]["epoch"] == epoch
            assert await served.generate() == (200, "7")
            assert await served.status("/readyz") == 200
        await until(lambda: served.process.log.count(" ERROR ") == len(said))
        logged = [line for line in served.process.log.splitlines() if " ERROR " in line]
        for line, words in zip(logged, said, strict=True):
            assert "the last good one stays in force: " in line
            assert line.endswith(words)

        # The same content as before is good again, though not a new table.
        table.write()
        await served.becomes(lambda page: page["table"]["last_error"] is None)
        assert (await served.page())["table"]["epoch"] == epoch
        await until(lambda: "is good again" in served.process.log)

        table.set("e0", weightVersion="8")
        await served.becomes(lambda page: page["pools"][0]["fleet_max"] == "8")
        assert (await served.generate())[0] == 200


async def test_a_deleted_table_keeps_the_last_good_one(tmp_path: Path, table: TableFile) -> None:
    async with proxy(tmp_path, table.path) as served:
        table.path.unlink()
        await served.becomes(lambda page: page["table"]["last_error"] is not None)

        assert "does not exist" in (await served.page())["table"]["last_error"]
        assert await served.generate() == (200, "7")
        table.set("e0", zone="b")
        await served.becomes(lambda page: page["table"]["last_error"] is None)


async def test_a_table_behind_a_symbolic_link_follows_its_swap(
    tmp_path: Path, engine: SimEngine
) -> None:
    """As Kubernetes mounts a ConfigMap: the file is a link into a directory that is a link."""
    for generation, control in (("one", "active"), ("two", "asleep")):
        (tmp_path / generation).mkdir()
        engine_row = json.dumps(row(engine, control=control))
        (tmp_path / generation / "table.yaml").write_text(GOOD % engine_row)
    data = tmp_path / "..data"
    data.symlink_to("one")
    mounted = tmp_path / "table.yaml"
    mounted.symlink_to(Path("..data") / "table.yaml")
    async with proxy(tmp_path, mounted) as served:
        assert await served.generate() == (200, "7")

        (tmp_path / "..next").symlink_to("two")
        (tmp_path / "..next").replace(data)

        await served.becomes(lambda page: page["pools"][0]["engines"][0]["control"] == "asleep")
        assert (await served.generate())[0] == 503
