"""The trials, made on the engines themselves: what a proxy that does nothing would be found to do."""

import asyncio
import sys

from tests.bench.proxies import features
from tests.bench.proxies.peers import Found, Subject
from tests.bench.proxies.trials import OddEngines, Trials, tried


async def test_without_a_proxy_everything_passes_once() -> None:
    engines = OddEngines()
    await engines.start(1)
    try:
        trials = Trials(engines.ports[0], engines)
        await trials.until_it_serves()
        found = await trials.all()
    finally:
        await engines.close()
    assert found == {
        "body": "passed on as it came",
        "stamp": False,
        "names_engine": False,
        "version_policy": False,
        "two_lengths": 200,
        "leaving_wait": True,
        "leaving_stream": True,
        "attempts_500": 1,
        "status_500": 500,
        "attempts_503": 1,
        "status_503": 503,
        "attempts_429": 1,
        "status_429": 429,
        "attempts_broken": 1,
        "status_broken": 0,
        "takes_out": False,
    }
    assert features.table({"nginx": found}).count("passed on as it came") == 1


async def test_an_engine_that_is_not_told_notices_nothing(monkeypatch) -> None:
    monkeypatch.setattr("tests.bench.proxies.trials.PATIENCE", 0.05)
    engines = OddEngines()
    await engines.start(1)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes the request on, and goes on waiting for the answer when the client has left."""
        _, up = await asyncio.open_connection("127.0.0.1", engines.ports[0])
        while data := await reader.read(65_536):
            up.write(data)
        await done.wait()
        up.close()
        writer.close()

    done = asyncio.Event()
    proxy = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        trials = Trials(proxy.sockets[0].getsockname()[1], engines)
        assert await trials._leave("wait") is False
    finally:
        done.set()
        proxy.close()
        await engines.close()


def test_a_proxy_that_does_not_serve_is_a_dash(monkeypatch) -> None:
    monkeypatch.setattr("tests.bench.proxies.trials.START", 0.3)
    subject = Subject(
        name="smg",
        find=lambda _: Found("-", ""),
        command=lambda program, _: [program, "-c", ""],
        settings="",
    )
    found = tried(subject, Found("-", sys.executable))
    assert set(found) == {"failed"}
    lines = features.table({"smg": found}).splitlines()
    assert lines[2].count("–") == len(features.NAMES)


def test_every_proxy_has_a_cell_in_every_row() -> None:
    assert all(len(cells) == len(features.NAMES) for _, cells in features.TOLD)
