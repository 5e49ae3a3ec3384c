"""The proxy as a process: what it says of its configuration; the other commands."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import pytest

from steersman_sim.engine import SimEngine
from tests.proxy.process import BAD_TABLES, proxy, run, steersman
from tests.proxy.support import TableFile, until

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
