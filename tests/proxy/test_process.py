"""The proxy as a process: starting, leaving, dying, and a table file under its feet."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from steersman_sim.engine import EngineConfig, SimEngine
from tests.proxy.support import TableFile, until

WITHIN = 40.0
"""Seconds after which a process is taken to be stuck; a busy machine starts one in two."""


class Process:
    """One ``steersman ...`` process whose standard error goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN):
            return (await self._process.stdout.readline()).decode().rstrip("\n")

    async def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what was left on standard output."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN):
            out = await self._process.stdout.read()
            return await self._process.wait(), out.decode()


@contextlib.asynccontextmanager
async def steersman(
    tmp_path: Path, *arguments: str, files: int | None = None
) -> AsyncIterator[Process]:
    """Run a subcommand. ``files`` is its soft limit of open files."""
    log = tmp_path / f"{arguments[0]}-{len(list(tmp_path.glob('*.log')))}.log"
    with log.open("wb") as stderr:
        limited = () if files is None else ("sh", "-c", f'ulimit -Sn {files}; exec "$@"', "sh")
        process = await asyncio.create_subprocess_exec(
            *(*limited, sys.executable, "-m", "steersman.cli", *arguments),
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield Process(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    async with steersman(tmp_path, *arguments) as process:
        code, out = await process.end()
        return code, out, process.log


class Proxy:
    """A proxy process that serves, and a client of it."""

    def __init__(self, process: Process, line: str, client: aiohttp.ClientSession) -> None:
        words = line.replace(",", "").split()
        assert words[:2] == ["listening", "on"], line
        self.process = process
        self.url, self.metrics_url = words[2], words[5]
        self.client = client

    async def status(self, path: str) -> int | None:
        """The status of a page of the metrics port; ``None`` if nobody listens there."""
        try:
            async with self.client.get(self.metrics_url + path) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return None

    async def page(self) -> dict[str, Any]:
        async with self.client.get(f"{self.metrics_url}/status") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def becomes(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until ``/status`` is as it should be."""
        async with asyncio.timeout(WITHIN):
            while not condition(await self.page()):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)

    async def not_ready(self) -> None:
        async with asyncio.timeout(WITHIN):
            while await self.status("/readyz") != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def generate(self, **body: Any) -> tuple[int, str | None]:
        """Status and the version of one buffered request."""
        content = {"text": "a", "sampling_params": {"max_new_tokens": 2}} | body
        async with self.client.post(f"{self.url}/generate", json=content) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-smg-weight-version")


@contextlib.asynccontextmanager
async def proxy(
    tmp_path: Path,
    table: Path,
    *flags: str,
    config: dict[str, Any] | None = None,
    files: int | None = None,
) -> AsyncIterator[Proxy]:
    # JSON is YAML.
    (tmp_path / "proxy.yaml").write_text(json.dumps({"table": {"poll": "20ms"}} | (config or {})))
    arguments = ["--config", "proxy.yaml", "--table", str(table), "--port", "0"]
    arguments += ["--metrics-port", "0", *flags]
    async with (
        steersman(tmp_path, "proxy", *arguments, files=files) as process,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        line = await process.line()
        assert line, process.log
        yield Proxy(process, line, client)


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    async with SimEngine(EngineConfig(speed=0, weight_version="7")) as started:
        yield started


@pytest.fixture
async def stepped() -> AsyncIterator[SimEngine]:
    """An engine that makes tokens when the test says so."""
    async with SimEngine(EngineConfig(speed=0, weight_version="7", manual=True)) as started:
        yield started


@pytest.fixture
def table(tmp_path: Path, engine: SimEngine) -> TableFile:
    return TableFile(tmp_path / "table.yaml", [row(engine)])


def row(engine: SimEngine, **changes: Any) -> dict[str, Any]:
    return {"id": "e0", "url": engine.url, "runtime": "sglang", "weightVersion": "7"} | changes


# --- leaving ------------------------------------------------------------------------------------------

STREAM = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 50}}


@contextlib.asynccontextmanager
async def open_stream(served: Proxy, engine: SimEngine) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that has begun and waits for its engine."""
    stepping = asyncio.create_task(engine.step(3))
    async with served.client.post(f"{served.url}/generate", json=STREAM) as answer:
        assert answer.status == 200
        assert (await answer.content.readline()).startswith(b"data: ")
        await stepping
        yield answer


async def finish(engine: SimEngine, answer: aiohttp.ClientResponse) -> bytes:
    """Let the engine make the rest, and read it."""
    stepping = asyncio.create_task(engine.step(100))
    try:
        return await answer.read()
    finally:
        stepping.cancel()
        await asyncio.wait([stepping])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_drains(tmp_path: Path, stepped: SimEngine, number: signal.Signals) -> None:
    """Not ready at once, still accepting for a while, then only what runs, then gone."""
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "1500ms", "grace": "60s"}}
    async with proxy(tmp_path, file.path, config=config) as served:
        async with open_stream(served, stepped) as answer:
            assert await served.status("/readyz") == 200

            served.process.signal(number)
            await served.not_ready()

            # Load balancers need a moment to notice: what they send meanwhile is served.
            async with served.client.get(f"{served.url}/liveness") as probe:
                assert probe.status == 200
            async with served.client.get(f"{served.url}/readiness") as probe:
                assert (probe.status, probe.headers["x-smg-error-code"]) == (503, "draining")
            assert await served.status("/livez") == 200
            host, port = served.url.removeprefix("http://").split(":")
            async with asyncio.timeout(WITHIN):
                while await can_connect(host, int(port)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

            # Nothing listens any more, and the stream that began before goes on to its end.
            assert served.process.running
            assert await served.status("/readyz") == 503
            rest = await finish(stepped, answer)
            assert rest.endswith(b"data: [DONE]\n\n")
        code, _ = await served.process.end()

        assert code == 0
        (entry,) = stepped.journal.of("/generate")
        assert not entry.disconnected
        assert "Traceback" not in served.process.log
        assert "still ran" not in served.process.log


async def can_connect(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return True


async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path, stepped: SimEngine) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "1h", "grace": "2h"}}
    async with (
        proxy(tmp_path, file.path, config=config) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGTERM)
        await served.not_ready()
        assert served.process.running

        served.process.signal(signal.SIGTERM)

        code, _ = await served.process.end()
        assert code == 0
        # The client sees a broken answer, not one that seems to be whole.
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        (entry,) = stepped.journal.of("/generate")
        await stepped.until(lambda: entry.disconnected)
        assert "Traceback" not in served.process.log


async def test_what_runs_longer_than_the_grace_time_is_cut(
    tmp_path: Path, stepped: SimEngine
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "0s", "grace": "300ms"}}
    async with (
        proxy(tmp_path, file.path, config=config) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGTERM)

        code, _ = await served.process.end()
        assert code == 0
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        assert "1 requests still ran after the grace time" in served.process.log
        assert "Traceback" not in served.process.log


async def test_requests_that_wait_when_it_leaves_are_served_within_the_grace_time(
    tmp_path: Path, engine: SimEngine
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    config = {"shutdown": {"drain": "0s", "grace": "60s"}}
    async with proxy(tmp_path, file.path, config=config) as served:
        waiting = asyncio.create_task(served.generate())
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 1)
        served.process.signal(signal.SIGTERM)
        await served.not_ready()

        # Its engine opens in time: the request is served, as any that came before the signal.
        file.set("e0", control="active")

        assert await waiting == (200, "7")
        assert (await served.process.end())[0] == 0


@pytest.mark.parametrize("grace", ["300ms", "2h"])
async def test_requests_that_still_wait_at_the_end_are_told_to_ask_another_replica(
    tmp_path: Path, engine: SimEngine, grace: str
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    config = {"shutdown": {"drain": "0s", "grace": grace}}
    async with proxy(tmp_path, file.path, config=config) as served:
        asking = [
            asyncio.create_task(served.client.post(f"{served.url}/generate", json={"text": "a"}))
            for _ in range(20)
        ]
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 20)

        served.process.signal(signal.SIGTERM)
        if grace == "2h":
            await served.not_ready()
            served.process.signal(signal.SIGTERM)

        for answer in await asyncio.gather(*asking):
            async with answer:
                assert (answer.status, answer.headers["x-smg-error-code"]) == (503, "draining")
                assert answer.headers["retry-after"]
                assert "was not sent" in (await answer.json())["error"]["message"]
        assert (await served.process.end())[0] == 0
        assert engine.journal.count == 0


async def test_killed_it_leaves_no_work_behind(tmp_path: Path, stepped: SimEngine) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    async with (
        proxy(tmp_path, file.path) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGKILL)

        assert (await served.process.end())[0] == -signal.SIGKILL
        (entry,) = stepped.journal.of("/generate")
        await stepped.until(lambda: entry.disconnected and stepped.connections == 0)
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_the_usual_limit_of_open_files_limits_no_trainer(
    tmp_path: Path, engine: SimEngine
) -> None:
    """Shells give 1,024 files, and a request takes two. Here it is 64, to make the test small."""
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    async with proxy(tmp_path, file.path, files=64) as served:
        requests = [asyncio.create_task(served.generate()) for _ in range(200)]
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 200)
        file.set("e0", control="active")

        assert set(await asyncio.gather(*requests)) == {(200, "7")}


# --- the table file -----------------------------------------------------------------------------------

GOOD = '{"pools": [{"name": "pool", "model": "sim-model", "engines": [%s]}]}'

# Content, and what is said of it after the file's path.
BAD_TABLES: dict[str, tuple[str, list[str]]] = {
    "not YAML": ("pools: [\n", [":2: is not valid YAML"]),
    "half a file": (
        "pools:\n  - name: pool\n    engines:\n      - ur",
        [":4: pools[0].engines[0]: must have keys below it, found text"],
    ),
    "an unknown key": (
        "pools:\n  - name: pool\n    modle: sim-model\n",
        [":3: pools[0].modle: unknown key `modle`; did you mean `model`?"],
    ),
    "an id that is there twice": (
        """\
pools:
- name: pool
  engines:
  - {id: e0, url: "http://127.0.0.1:1"}
  - {id: e0, url: "http://127.0.0.1:2"}
""",
        [":5: pools[0].engines[1].id: the engine id 'e0' is taken already (line 4)"],
    ),
    "a version that is no text": (
        """\
pools:
- name: pool
  engines:
  - url: "http://127.0.0.1:1"
    weightVersion: [1]
""",
        [":5: pools[0].engines[0].weightVersion: must be a weight version, found a list"],
    ),
    "an empty file": ("", [": is empty"]),
    "another kind of file": (
        "listen: {port: 1}\n",
        [":1: has no `pools`; add the key", ":1: listen: unknown key `listen`"],
    ),
}


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


# --- the configuration --------------------------------------------------------------------------------


BAD_CONFIGURATIONS = {
    "unknown key": (
        "listen:\n  prt: 1\n",
        ":2: listen.prt: unknown key `prt`; did you mean `port`?",
    ),
    "bad value": ("routing:\n  policy: best\n", ":2: routing.policy: "),
    "contradiction": ("shutdown: {drain: 2h, grace: 1h}\n", ":1: shutdown.drain: is 7200 s"),
    "missing key file": ("auth:\n  apiKeysFile: nowhere\n", ":2: auth.apiKeysFile: "),
    "not YAML": ("a: [\n", ":2: is not valid YAML"),
}


async def test_a_configuration_that_cannot_be_used_says_where_and_exits_1(tmp_path: Path) -> None:
    async def start(name: str, content: str, words: str) -> None:
        place = tmp_path / name
        place.mkdir()
        (place / "proxy.yaml").write_text(content)
        (place / "table.yaml").write_text("pools: []\n")
        arguments = ("--config", "proxy.yaml", "--table", "table.yaml")
        code, out, err = await run(place, "proxy", *arguments)
        assert (code, out) == (1, "")
        (line,) = err.splitlines()
        assert line.startswith(f"steersman proxy: proxy.yaml{words}")

    await asyncio.gather(
        *(start(name, content, words) for name, (content, words) in BAD_CONFIGURATIONS.items())
    )


async def test_check_shows_every_problem_of_every_file_at_once(tmp_path: Path) -> None:
    files = []
    for name, (content, _) in (BAD_CONFIGURATIONS | BAD_TABLES).items():
        files.append(f"{name}.yaml".replace(" ", "-"))
        (tmp_path / files[-1]).write_text(content)

    code, out, err = await run(tmp_path, "check", *files)

    # What is a bad table because it is a configuration, is a good configuration.
    good = "another-kind-of-file.yaml"
    assert (code, out) == (1, f"{good}: ok (proxy configuration)\n")
    found = err.splitlines()
    assert {line.split(":")[0] for line in found} == set(files) - {good}
    assert "unknown-key.yaml:2: listen.prt: unknown key `prt`; did you mean `port`?" in found
    assert [line for line in found if line.startswith("an-id-that-is-there-twice.yaml:5: ")]


async def test_without_a_table_or_with_a_missing_file_it_says_so(tmp_path: Path) -> None:
    code, _, err = await run(tmp_path, "proxy")
    assert code == 1
    assert "--table FILE" in err
    code, _, err = await run(tmp_path, "proxy", "--table", "nowhere.yaml")
    assert code == 1
    assert err == f"steersman proxy: {tmp_path}/nowhere.yaml: does not exist; check the path\n"
    code, _, err = await run(tmp_path, "proxy", "--config", "nowhere.yaml")
    assert code == 1
    assert "nowhere.yaml: does not exist" in err


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
async def test_a_port_in_use_is_one_line_and_exit_1(
    tmp_path: Path, engine: SimEngine, table: TableFile, flag: str
) -> None:
    flags = {"--port": "0", "--metrics-port": "0"} | {flag: str(engine.port)}
    arguments = [word for pair in flags.items() for word in pair]

    code, out, err = await run(
        tmp_path, "proxy", "--table", str(table.path), "--log-level", "error", *arguments
    )

    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line == (
        f"steersman proxy: cannot listen on 127.0.0.1:{engine.port}: Address already in use"
    )


async def test_one_line_is_logged_for_each_request(
    tmp_path: Path, engine: SimEngine, table: TableFile
) -> None:
    async with proxy(tmp_path, table.path, "--log-format", "json") as served:
        await served.generate()
        async with served.client.get(f"{served.url}/x?key=secret\r\n") as answer:
            assert answer.status == 404
        await until(lambda: served.process.log.count('"logger":"steersman.access"') == 2)

        lines = [json.loads(line) for line in served.process.log.splitlines()]
        first, second = [line for line in lines if line["logger"] == "steersman.access"]
        assert (first["path"], first["status"], first["engine"]) == ("/generate", 200, "e0")
        assert (first["weight_version"], first["outcome"]) == ("7", "ok")
        assert (second["path"], second["status"], second["error"]) == ("/x", 404, "unknown_url")
        assert "secret" not in served.process.log
        served.process.signal(signal.SIGTERM)
        served.process.signal(signal.SIGTERM)


# --- the other commands ---------------------------------------------------------------------------------


async def test_a_first_table_by_asking_engines_serves_them(tmp_path: Path) -> None:
    """From nothing to an answer: two engines, ``table init``, ``check``, a proxy, ``explain``."""
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for runtime, model in (("sglang", "m-one"), ("vllm", "m-two")):
            process = await stack.enter_async_context(
                steersman(
                    tmp_path,
                    *("sim-engine", "--runtime", runtime, "--model", model),
                    *("--weight-version", "7", "--speed", "instant"),
                )
            )
            urls.append((await process.line()).removeprefix("listening on "))
        engines = [word for url in urls for word in ("--engine", url)]

        code, out, err = await run(tmp_path, "table", "init", *engines, "--output", "table.yaml")
        assert (code, out) == (0, "")
        assert "sglang, m-one, weight version 7" in err
        assert "vllm, m-two, weight version 7" in err
        code, out, err = await run(tmp_path, "check", "table.yaml")
        assert (code, out) == (0, "table.yaml: ok (fleet table, 2 pools, 2 engines)\n")
        # It does not overwrite what somebody may have edited.
        code, _, err = await run(tmp_path, "table", "init", *engines, "--output", "table.yaml")
        assert code == 2
        assert "--force" in err

        served = await stack.enter_async_context(proxy(tmp_path, tmp_path / "table.yaml"))
        for model, url in zip(("m-one", "m-two"), urls, strict=True):
            body = {"model": model, "prompt": "a", "max_tokens": 2}
            async with served.client.post(f"{served.url}/v1/completions", json=body) as answer:
                assert answer.status == 200
                assert answer.headers["x-smg-routed-worker-id"] == url
                assert answer.headers["x-smg-weight-version"] == "7"
        code, out, _ = await run(tmp_path, "explain", "m-two", "--proxy", served.metrics_url)
        assert code == 0
        name = urls[1].removeprefix("http://")
        assert out.splitlines()[-1] == f"{name} would serve"
        code, _, err = await run(tmp_path, "explain", "m-three", "--proxy", served.metrics_url)
        assert code == 1
        assert err == "steersman explain: no pool serves the model 'm-three'\n"
        served.process.signal(signal.SIGTERM)
        served.process.signal(signal.SIGTERM)


async def test_table_init_names_what_it_could_not_identify(
    tmp_path: Path, engine: SimEngine, free_port: int
) -> None:
    gone = f"http://127.0.0.1:{free_port}"

    code, out, err = await run(
        tmp_path, "table", "init", "--engine", engine.url, "--engine", gone, "--timeout", "20s"
    )

    assert code == 1
    assert f"{gone}: Unreachable" in err
    # What could be found is there all the same, and it is a good table.
    (tmp_path / "out.yaml").write_text(out)
    code, said, _ = await run(tmp_path, "check", "out.yaml")
    assert (code, said) == (0, "out.yaml: ok (fleet table, 1 pool, 1 engine)\n")
    assert f"#   {gone}: Unreachable" in out


async def test_explain_without_a_proxy_says_what_to_do(tmp_path: Path, free_port: int) -> None:
    code, out, err = await run(tmp_path, "explain", "--proxy", f"http://127.0.0.1:{free_port}")

    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert f"no proxy answers at http://127.0.0.1:{free_port}" in line
    assert "--proxy" in line
