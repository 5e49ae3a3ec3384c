"""``steersman table init`` against small fake engines at real sockets."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from steersman.cli import main
from steersman.engine import Role, Runtime, Trust
from steersman_proxy.tablefile import TableReader, load_table_file
from steersman_proxy.tablefile.discovery import Finding
from steersman_proxy.tablefile.render import Asked, pools_of, quoted, render

Answers = dict[str, Any]


class FakeEngines:
    """Servers in a thread of their own, as the command runs an event loop itself."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._runners: list[web.ServerRunner] = []
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.asked: list[tuple[str, str | None]] = []
        """Paths with the Authorization header that came with each."""

    def start(self, answers: Answers, *, key: str | None = None, hang: bool = False) -> str:
        """Start an engine; paths without an answer are 404. Returns its URL."""

        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            sent = request.headers.get("Authorization")
            self.asked.append((request.path, sent))
            if hang:
                await self._closing.wait()
            if key is not None and sent != f"Bearer {key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            if request.path in answers:
                return web.json_response(answers[request.path])
            return web.json_response({"detail": "Not Found"}, status=404)

        return asyncio.run_coroutine_threadsafe(self._serve(handler), self._loop).result(10)

    async def _serve(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> str:
        runner = web.ServerRunner(web.Server(handler), shutdown_timeout=1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    def close(self) -> None:
        async def clean() -> None:
            self._closing.set()
            for runner in self._runners:
                await runner.cleanup()

        asyncio.run_coroutine_threadsafe(clean(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def engines() -> Iterator[FakeEngines]:
    fakes = FakeEngines()
    yield fakes
    fakes.close()


def sglang(model: str, **more: object) -> Answers:
    info = {"model_path": "/m", "served_model_name": model, "weight_version": "default"} | more
    return {"/model_info": info}


def vllm(model: str, version: str | None = None) -> Answers:
    answers: Answers = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"object": "list", "data": [{"id": model, "parent": None}]},
    }
    if version is not None:
        answers["/weight_info"] = {"weight_version": version}
    return answers


def init(*words: str) -> int:
    return main(["table", "init", *words])


def test_a_mixed_fleet_becomes_a_table(
    engines: FakeEngines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [
        engines.start(sglang("org/Math-8B", weight_version="042")),
        engines.start(sglang("org/Math-8B")),
        engines.start(vllm("judge", "7")),
        engines.start(vllm("judge")),
    ]
    output = tmp_path / "table.yaml"

    code = init(*(word for url in urls for word in ("--engine", url)), "--output", str(output))

    assert code == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"{urls[0]}: sglang, org/Math-8B, weight version 042",
        f"{urls[1]}: sglang, org/Math-8B, no weight version",
        f"{urls[2]}: vllm, judge, weight version 7",
        (
            f"{urls[3]}: vllm, judge, no weight version (it does not tell its weight version "
            "(VLLM_SERVER_DEV_MODE is off))"
        ),
        f"wrote {output}",
    ]
    table = TableReader().read(load_table_file(output))
    assert [(pool.name, pool.models) for pool in table.pools] == [
        ("Math-8B", ("org/Math-8B",)),
        ("judge", ("judge",)),
    ]
    assert [(row.url, row.runtime, row.version, row.trust) for row in table.engines] == [
        (urls[0], Runtime.SGLANG, "042", Trust.VERIFIED),
        (urls[1], Runtime.SGLANG, None, Trust.UNKNOWN),
        (urls[2], Runtime.VLLM, "7", Trust.VERIFIED),
        (urls[3], Runtime.VLLM, None, Trust.UNKNOWN),
    ]
    assert [row.id for row in table.engines] == [url.removeprefix("http://") for url in urls]
    assert "/health" not in {path for path, _ in engines.asked}
    assert output.read_text().startswith("# The fleet of a Steersman proxy")
    assert [path.name for path in tmp_path.iterdir()] == ["table.yaml"]


def test_without_output_the_table_is_printed(
    engines: FakeEngines, capsys: pytest.CaptureFixture[str]
) -> None:
    url = engines.start(sglang("qwen"))

    # A trailing slash and a second mention are the same engine.
    assert init("--engine", f"{url}/", "--engine", url, "--pool", "main") == 0

    printed = capsys.readouterr().out
    assert printed.count("url:") == 1
    assert "  - name: main\n    model: qwen\n    engines:\n" in printed


def test_an_engine_that_needs_a_key(
    engines: FakeEngines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = engines.start(sglang("qwen"), key="sk-engine")
    (tmp_path / "key").write_text("sk-engine\n")

    assert init("--engine", url) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{url}: AuthFailed: needs a key (--api-key-file)",
        "steersman table init: no engine could be identified, so no table is written",
    ]

    assert init("--engine", url, "--api-key-file", str(tmp_path / "key")) == 0
    assert engines.asked[-1] == ("/model_info", "Bearer sk-engine")
    shown = capsys.readouterr()
    assert "sk-engine" not in shown.out + shown.err


def test_engines_that_do_not_answer_are_told_and_left_out(
    engines: FakeEngines, free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = engines.start(sglang("qwen"))
    slow = engines.start({}, hang=True)
    other = engines.start({"/": "a web site"})
    dead = f"http://127.0.0.1:{free_port}"
    output = tmp_path / "table.yaml"

    code = init(
        *(word for url in (good, slow, other, dead) for word in ("--engine", url)),
        "--timeout", "500ms", "--output", str(output),
    )  # fmt: skip

    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{good}: sglang, qwen, no weight version"
    assert lines[1] == f"{slow}: TimedOut: no answer within 0.5 s"
    assert lines[2].startswith(f"{other}: NotAnEngine: neither /model_info (SGLang) nor")
    assert lines[3].startswith(f"{dead}: Unreachable: ")
    assert [row.url for row in TableReader().read(load_table_file(output)).engines] == [good]
    for url in (slow, other, dead):
        assert f"#   {url}: " in output.read_text()


def test_an_existing_file_is_kept_unless_forced(
    engines: FakeEngines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = engines.start(sglang("qwen"))
    output = tmp_path / "table.yaml"
    output.write_text("precious\n")

    assert init("--engine", url, "--output", str(output)) == 2
    assert output.read_text() == "precious\n"
    # Refused before anybody is asked.
    assert engines.asked == []
    assert capsys.readouterr().err == (
        f"steersman table init: --output: {output} exists; --force overwrites it\n"
    )

    assert init("--engine", url, "--output", str(output), "--force") == 0
    assert load_table_file(output).pools[0].model == "qwen"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--engine", "10.0.0.1:80"], "--engine: must begin with http:// or https://"),
        (["--engine", "http://a", "--output", "t.toml"], "--output: t.toml must end in .yaml"),
        (["--engine", "http://a", "--output", "no/t.yaml"], "--output: there is no directory no"),
        (["--engine", "http://a", "--api-key-file", "no"], "--api-key-file: no does not exist"),
        (["--engine", "http://a", "--timeout", "0"], "--timeout: must be longer than 0"),
        (["--engine", "http://a", "--timeout", "x"], "--timeout: must be seconds or a text"),
    ],
)
def test_wrong_usage(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert init(*words) == 2
    assert capsys.readouterr().err.startswith(f"steersman table init: {problem}")


def test_one_pool_name_does_not_fit_two_models(
    engines: FakeEngines, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = engines.start(sglang("a")), engines.start(sglang("b"))

    assert init("--engine", first, "--engine", second, "--pool", "main") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "steersman table init: --pool names one pool, but the engines serve several models: a, b"
    )


# --- The text of the table -----------------------------------------------------------------------


def asked(name: str, *models: str, **more: Any) -> Asked:
    finding = Finding(runtime=Runtime.SGLANG, models=models, **more)
    return Asked(url=f"http://{name}:1", finding=finding)


def test_pools_are_named_after_their_models() -> None:
    pools = pools_of(
        [asked("a", "/data/models/Q 3/"), asked("b", "org/x"), asked("c", "other/x"), asked("d", "//")]
    )  # fmt: skip

    assert [pool.name for pool in pools] == ["Q-3", "x", "x-2", "pool"]


def test_a_pool_has_the_names_that_all_its_engines_answer_to() -> None:
    (pool,) = pools_of([asked("a", "m", "x", "y"), asked("b", "m", "y")])

    assert pool.models == ("m", "y")
    assert '    models: [m, "y"]\n' in render([pool])


def test_roles_and_odd_names_survive_the_file(tmp_path: Path) -> None:
    model = 'größe: "x" #1 😀'
    path = tmp_path / "t.yaml"
    path.write_text(render(pools_of([asked("a", model, role=Role.DECODE, version="1e3")])))

    table = TableReader().read(load_table_file(path))

    assert table.pools[0].models == (model,)
    assert (table.engines[0].role, table.engines[0].version) == (Role.DECODE, "1e3")


def test_what_engines_say_cannot_break_out_of_a_comment() -> None:
    text = render([], failed=[Asked(url="http://a", problem="x\npools: [evil]\x1b[2J")])

    assert text.splitlines()[-1] == "#   http://a: x pools: [evil]?[2J"
    assert "\npools: []\n" in text


@pytest.mark.parametrize("word", ["yes", "Off", "null", "7", "1.10", "a: b", "- a", "", "~", "#x"])
def test_words_that_mean_something_else_to_a_yaml_reader_are_quoted(word: str) -> None:
    assert quoted(word) == f'"{word}"'
