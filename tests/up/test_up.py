"""`steersman up` from start to end: files, processes, ports, what it says and what it keeps."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from steersman_operator.standalone.strays import strays
from steersman_sim.engine import Runtime
from tests.up.fleet import (
    UpFleet,
    end,
    engine_of,
    engines_of,
    exists,
    manifest,
    short_directory,
    sims,
    up,
)

BAD = "apiVersion: rollout.steersman.io/v1alpha1\nkind: RolloutEngine\nmetadata: {name: a}\nspec: {modle: a}\n"


async def steersman(*arguments: str) -> tuple[int, str]:
    """Run a command: exit code, and everything that it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steersman.cli", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_two_pools_are_served_on_one_endpoint_and_changed_by_commands() -> None:
    async with (
        sims(2, model="a") as first,
        sims(1, model="b", runtime=Runtime.VLLM) as second,
        up({"a.yaml": manifest("a", first), "b.yaml": manifest("b", second)}, proxies=2) as fleet,
    ):
        where = ("-f", str(fleet.directory))
        assert (await fleet.generate(model="a"))[0] == 200
        body = {"model": "b", "prompt": "x", "max_tokens": 2}
        async with fleet.client.post(f"{fleet.endpoint}/v1/completions", json=body) as answer:
            assert answer.headers["x-smg-routed-worker-id"] == second[0].url

        code, said = await steersman("sleep", "a", "--engine", "e1", *where)
        assert (code, said.splitlines()[-1]) == (0, "engine/a/e1 asleep"), said
        assert len(first[1].journal.of("/release_memory_occupation")) == 1
        text = (fleet.directory / "a.yaml").read_text()
        assert "state: Active  # what the verbs edit" in text
        assert "engine: e1" in text and "state: Asleep" in text

        code, said = await steersman("explain", "a", "-o", "json", *where)
        verdicts = {one["id"]: one["reason"] for one in json.loads(said)["engines"]}
        assert [bool(reason) for reason in verdicts.values()] == [False, True]

        code, said = await steersman("pause", "b", *where)
        assert code == 0, said
        assert second[0].journal.of("/pause")
        code, said = await steersman("get", "re", "-o", "json", *where)
        found = {item["metadata"]["name"]: item for item in json.loads(said)["items"]}
        assert found["b"]["status"]["counts"]["paused"] == 1
        assert "state: Paused  # what the verbs edit" in (fleet.directory / "b.yaml").read_text()

        code, said = await steersman("resume", "a", "--engine", "e1", *where)
        assert code == 1 and "wake" in said, said
        for words in (("wake", "a", "--engine", "e1"), ("resume", "b")):
            code, said = await steersman(*words, *where)
            assert code == 0, said
        assert (fleet.directory / "a.yaml").read_text() == manifest("a", first)
        code, said = await steersman("wait", "a", "--for", "condition=Ready", *where)
        assert code == 0, said
        assert [engine.died for engine in (*first, *second)] == [None] * 3


async def test_an_edited_file_is_followed_and_a_bad_one_changes_nothing() -> None:
    async with sims(2) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        path = fleet.directory / "a.yaml"
        path.write_text(manifest("a", engines).replace("state: Active", "state: Paused"))
        await fleet.settled("paused")
        path.write_text(BAD)
        status = await fleet.until(lambda now: now["errors"])
        assert "a.yaml:4: spec.modle: unknown key `modle`; did you mean `model`?" in (
            "\n".join(status["errors"])
        )
        assert [engine["control"] for engine in engines_of(status)] == ["paused"] * 2
        (fleet.directory / "b.yaml").write_text(manifest("b", []))
        await fleet.until(lambda now: {pool["name"] for pool in now["pools"]} == {"a", "b"})

        # Also an operator that starts while the file is bad knows the last good version.
        before = (await fleet.status())["operator"]
        os.kill(before["pid"], signal.SIGKILL)
        status = await fleet.until(
            lambda now: now["operator"]["term"] > before["term"] and now["operator"]["published"]
        )
        assert [engine["control"] for engine in engines_of(status, "a")] == ["paused"] * 2
        assert status["errors"]
        path.write_text(manifest("a", engines))
        await fleet.settled("active")
        assert not (await fleet.status())["errors"]


async def test_what_two_manifests_claim_is_told() -> None:
    async with sims(1) as engines:
        files = {"a.yaml": manifest("a", engines), "b.yaml": manifest("b", engines)}
        async with up(files) as fleet:
            (sentence,) = (await fleet.status())["warnings"]
            assert f"both to have the engine {engines[0].url.removeprefix('http://')}" in sentence
            (fleet.directory / "b.yaml").unlink()
            await fleet.until(lambda now: not now["warnings"])


async def test_engines_and_pools_come_and_go_with_the_files() -> None:
    async with sims(3) as engines, up({"a.yaml": manifest("a", engines[:2])}) as fleet:
        (fleet.directory / "a.yaml").write_text(manifest("a", engines))
        await fleet.until(lambda now: len(engines_of(now)) == 3)
        await fleet.settled("active")
        stamps: set[str] = set()
        async with asyncio.timeout(30):
            while len(stamps) < 3:
                stamps.add((await fleet.generate())[2]["x-smg-routed-worker-id"])
        # Taken out of the pool, an engine is left as it is.
        (fleet.directory / "a.yaml").write_text(manifest("a", engines[:2]))
        await fleet.until(lambda now: len(engines_of(now)) == 2)
        await fleet.told()
        calls = engines[2].journal.count
        for _ in range(10):
            assert (await fleet.generate())[2]["x-smg-routed-worker-id"] != engines[2].url
        assert engines[2].journal.of("/pause_generation") == []
        assert engines[2].journal.count - calls <= 8, "it is not even looked at any more"


async def test_what_up_did_survives_up() -> None:
    """kill -9 of all of it while an engine sleeps, which nobody could ask."""
    with short_directory() as directory:
        async with sims(2) as engines:
            files = {"a.yaml": manifest("a", engines)}
            async with up(files, proxies=2, directory=directory) as fleet:
                assert (await fleet.edit("a", "sleep", "e0"))[0] == 200
                # Not before that is written down: the outcome of a sleep that is not is unknown.
                await fleet.until(
                    lambda now: (
                        engine_of(now, "e0")["control"] == "asleep"
                        and engine_of(now, "e0")["phase"] == "Settled"
                    )
                )
                pids = [await fleet.operator_pid(), *await fleet.proxy_pids()]
                fleet.process.kill()
                await fleet.process.wait()
                async with asyncio.timeout(20):
                    while any(exists(pid) for pid in pids):  # noqa: ASYNC110 (other processes)
                        await asyncio.sleep(0.02)
                assert strays(fleet.state) == []
            async with up({}, proxies=1, directory=directory) as fleet:
                status = await fleet.status()
                assert engine_of(status, "e0")["control"] == "asleep"
                assert (await fleet.generate())[2]["x-smg-routed-worker-id"] == engines[1].url
                assert (await fleet.edit("a", "wake", "e0"))[0] == 200
                await fleet.settled("active")
            assert len(engines[0].journal.of("/release_memory_occupation")) == 1
            assert [engine.died for engine in engines] == [None, None]


async def test_an_engine_that_lost_its_weights_waits_for_a_trainer() -> None:
    async with (
        sims(1, weights_cpu_backup=False) as (engine,),
        up({"a.yaml": manifest("a", [engine])}) as fleet,
    ):
        where = ("-f", str(fleet.directory))
        for verb in ("sleep", "wake"):
            code, said = await steersman(verb, "a", *where)
            assert code == 0, said
        assert "load weights into it, then let it go on" in said
        status = await fleet.status()
        assert engine_of(status, "e0")["phase"] == "AwaitingWeights"
        assert engine_of(status, "e0")["gate"] == "closed"
        code, said = await steersman(
            "wait", "a", "--for", "state=Active", "--timeout", "1s", *where
        )
        assert code == 3, said

        update = {"model_path": "/checkpoints/8", "weight_version": "8"}
        held = asyncio.create_task(fleet.generate())
        for path, body in (("/update_weights_from_disk", update), ("/continue_generation", {})):
            async with fleet.client.post(engine.url + path, json=body) as answer:
                assert answer.status == 200
        code, _, headers = await held
        assert (code, headers["x-smg-weight-version"]) == (200, "8")
        (generation,) = [
            one for entry in engine.journal.of("/generate") for one in entry.generations
        ]
        assert [span.version for span in generation.truth] == ["8"]


async def test_processes_that_die_are_started_again() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet:
        for _ in range(2):
            victim = (await fleet.proxy_pids())[0]
            os.kill(victim, signal.SIGKILL)
            await fleet.until(
                lambda now, victim=victim: (  # type: ignore[misc]
                    victim not in [proxy["pid"] for proxy in now["proxies"]]
                    and sum(proxy["connected"] for proxy in now["proxies"]) == 2
                )
            )
        uids = {proxy["uid"] for proxy in (await fleet.status())["proxies"]}
        assert len(uids) == 2
        assert not uids & {"proxy-0.1", "proxy-1.2"} or len(uids & {"proxy-0.1", "proxy-1.2"}) == 1
        assert (await fleet.generate())[0] == 200
        assert "signal 9" in fleet.output


async def test_it_ends_with_everything_that_it_started_and_finishes_requests() -> None:
    async with sims(1, speed=2.0) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        pids = [await fleet.operator_pid(), *await fleet.proxy_pids()]
        body = {"sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        running = asyncio.create_task(fleet.generate(**body))
        async with asyncio.timeout(30):
            while not engines[0].core.in_flight:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        fleet.process.send_signal(signal.SIGINT)
        assert (await running)[0] == 200
        assert await asyncio.wait_for(fleet.process.wait(), 30) == 0
        assert [pid for pid in pids if exists(pid)] == []
        assert "the engines are left as they are" in fleet.output


async def test_a_second_ctrl_c_cuts_what_still_runs() -> None:
    async with sims(1, speed=0.01) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        running = asyncio.create_task(fleet.generate())
        async with asyncio.timeout(30):
            while not engines[0].core.in_flight:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        fleet.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            while "Ctrl-C again" not in fleet.output:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        fleet.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(fleet.process.wait(), 15) == 0
        await asyncio.wait({running})
        assert running.exception() is not None or running.result()[0] != 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-f", "/no/such/directory"), "/no/such/directory does not exist"),
        (("-f", "/etc/hostname"), "/etc/hostname is not a directory"),
        (("-f", "DIR", "--proxy-config", "/no/file"), "--proxy-config: there is no file /no/file"),
        (("-f", "DIR", "--host", "no.such.host.invalid"), "see --port"),
        (("-f", "DIR", "--metrics-host", "192.0.2.1"), "--metrics-host"),
    ],
)
async def test_what_cannot_be_run_is_said_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    words = [str(tmp_path) if word == "DIR" else word for word in arguments]
    code, out = await steersman("up", "--port", "0", "--metrics-port", "0", *words)
    assert code == 1
    assert said in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    "flags", [("--proxies", "0"), ("--proxies", "x"), ("--port", "70000"), ("--port", "-1")]
)
async def test_wrong_usage_is_two(flags: tuple[str, ...], tmp_path: Path) -> None:
    code, out = await steersman("up", "-f", str(tmp_path), *flags)
    assert code == 2
    assert f"argument {flags[0]}: must be" in out


async def test_a_taken_port_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--metrics-port", "--operator-metrics-port"):
            free = {"--port": "0", "--metrics-port": "0", "--operator-metrics-port": "0"}
            flags = [word for pair in (free | {option: port}).items() for word in pair]
            code, out = await steersman("up", "-f", str(tmp_path), *flags)
            assert code == 1
            assert f"127.0.0.1:{port} is in use by another program" in out
            assert option in out


async def test_two_fleets_do_not_share_a_directory_or_a_port() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        code, out = await steersman("up", "-f", str(fleet.directory), "--port", "0")
        assert code == 1
        assert f"runs in {fleet.directory} already (process {fleet.process.pid})" in out
        with short_directory() as other:
            port = fleet.endpoint.rpartition(":")[2]
            code, out = await steersman("up", "-f", str(other), "--port", port)
            assert code == 1
            assert "is in use by another program" in out
        assert (await fleet.generate())[0] == 200


async def test_an_empty_directory_waits_for_its_first_manifest() -> None:
    async with sims(1) as engines, up({}, serving=False) as fleet:
        status = await fleet.until(lambda now: now["operator"]["published"])
        assert status["pools"] == []
        (fleet.directory / "a.yaml").write_text(manifest("a", engines))
        await _serving(fleet)
        assert "there is no RolloutEngine yet" in fleet.output
        assert (await fleet.generate())[0] == 200


async def test_keys_of_engines_reach_the_operator_and_the_proxies() -> None:
    auth = "  engineAuth: {dataKeyFile: data.key, adminKeyFile: admin.key}\n"
    async with sims(1, api_key="data-key", admin_api_key="admin-key") as engines:
        files = {
            "data.key": "data-key\n",
            "admin.key": "admin-key\n",
            "a.yaml": manifest("a", engines, extra=auth),
        }
        async with up(files) as fleet:
            assert (await fleet.generate())[0] == 200
            assert (await fleet.edit("a", "sleep"))[0] == 200
            await fleet.settled("asleep")
            assert (await fleet.edit("a", "wake"))[0] == 200
            await fleet.settled("active")
            kept = [path for path in fleet.state.rglob("*") if path.is_file()]
            assert kept
            leaked = [path for path in kept if b"-key\n" in path.read_bytes().replace(b'"', b"\n")]
            assert leaked == []


async def test_two_pools_that_claim_one_engine_conflict_and_the_older_keeps_it() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        (fleet.directory / "b.yaml").write_text(manifest("b", engines))
        status = await fleet.until(lambda now: len(now["pools"]) == 2)
        conflicts = {
            pool["name"]: next(one for one in pool["conditions"] if one["type"] == "Conflict")
            for pool in status["pools"]
        }
        assert {name: one["status"] for name, one in conflicts.items()} == {
            "a": "True",
            "b": "True",
        }
        assert [len(pool["engines"]) for pool in status["pools"]] == [1, 0]
        assert (await fleet.generate(model="a"))[0] == 200


async def test_a_record_of_the_operator_replays_bit_for_bit() -> None:
    with short_directory() as directory:
        record = directory / "events.jsonl"
        async with sims(1) as engines:
            files = {"a.yaml": manifest("a", engines)}
            async with up(files, directory=directory, flags=("--record", str(record))) as fleet:
                assert (await fleet.edit("a", "pause"))[0] == 200
                await fleet.settled("paused")
                await end(fleet.process)
        code, out = await steersman("replay", str(record))
        assert code == 0, out
        assert "Call pause" in out


async def test_the_operators_metrics_and_probes_are_served() -> None:
    async with sims(1) as engines:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = ("--operator-metrics-port", str(port))
        async with up({"a.yaml": manifest("a", engines)}, flags=flags) as fleet:
            for path in ("/metrics", "/livez", "/readyz"):
                async with fleet.client.get(f"http://127.0.0.1:{port}{path}") as answer:
                    assert answer.status == 200
                    text = await answer.text()
                    if path == "/metrics":
                        assert "steersman_operator_" in text


async def test_a_hello_of_a_process_that_nobody_started_is_turned_away() -> None:
    """Its end could never be told: every barrier would wait for it for ever."""
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        stranger = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "steersman.cli", "proxy", "--port", "0"),
            *("--metrics-port", "0", "--control", f"ipc://{fleet.state}/control.sock"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(30):
                while "unauthorised" not in await _metrics(fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            stranger.kill()
            await stranger.wait()
        assert (await fleet.edit("a", "pause"))[0] == 200
        await fleet.settled("paused")


async def _metrics(fleet: UpFleet) -> str:
    # The operator's port was chosen by `up`; the status page tells it to nobody but its log.
    arguments = Path(f"/proc/{await fleet.operator_pid()}/cmdline").read_bytes().split(b"\0")
    port = arguments[arguments.index(b"--metrics-port") + 1].decode()
    async with fleet.client.get(f"http://127.0.0.1:{port}/metrics") as answer:
        return await answer.text()


async def _serving(fleet: UpFleet) -> None:
    async with asyncio.timeout(60):
        while "serving on " not in fleet.output:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
    fleet.endpoint = fleet.output.partition("serving on ")[2].split()[0]
