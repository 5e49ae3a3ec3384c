"""Five hundred idle engines in one process: only the control routes that a look reads.

    python -m tests.bench.support_engines sglang|vllm [paused]

They have one port, and an address each below 127/8, so that the operator keeps one client for each.
Every answer is made once, as long as those of a real engine, so that it is the operator that works
here. The first line of the output is the port; it ends when its standard input does.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from steersman.engine import Runtime
from steersman_operator.fleet.spec import EngineSpec
from tests.bench.support import TOP, end_of_input

SERVER_INFO = 30_000
"""Bytes of SGLang's ``/server_info``: some 400 launch arguments, and once more in the state of each
rank."""

KEEP_ALIVE = 5.0
"""Seconds after which both engines close a connection on which nothing comes."""

HISTOGRAMS = 24
BUCKETS = 24
"""vLLM's ``/metrics`` has about so many series: 60 kB."""


def sglang_routes() -> dict[bytes, bytes]:
    arguments = {f"launch_argument_{n}": f"value {n:>4}" for n in range(400)}
    info: dict[str, Any] = {
        **arguments,
        "startup_time": {"load_weights": 41.52873, "capture": 12.98123, "total": 71.03412},
        "random_seed": 402931871,
        "internal_states": [arguments],
    }
    info["filler"] = "x" * (SERVER_INFO - len(json.dumps(info)))
    return {
        b"/ping": b"",
        b"/ready": b"",
        b"/model_info": json.dumps(
            {"model_path": "org/policy-model-7b", "weight_version": "step-1200"}
        ).encode(),
        b"/server_info": json.dumps(info).encode(),
    }


def vllm_routes(*, paused: bool) -> dict[bytes, bytes]:
    model = 'engine="0",model_name="org/policy-model-7b"'
    lines = ["process_start_time_seconds 1.75e+09"]
    for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
        lines.append(f'vllm:engine_sleep_state{{{model},sleep_state="{state}"}} {value:.1f}')
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        lines += [f"# HELP vllm:{name} What it is.", f"vllm:{name}{{{model}}} 0.0"]
    for number in range(HISTOGRAMS):
        name = f"vllm:request_phase_{number}_seconds"
        lines += [f"# HELP {name} Histogram of a phase.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{model},le="{0.3 * n}"}} 12345.0' for n in range(BUCKETS)]
    return {
        b"/health": b"",
        b"/version": b'{"version":"0.32.0"}',
        b"/is_paused": json.dumps({"is_paused": paused}).encode(),
        b"/is_sleeping": json.dumps({"is_sleeping": paused}).encode(),
        b"/weight_info": b'{"weight_version":"step-1200"}',
        b"/metrics": "\n".join(lines).encode(),
    }


class IdleEngine(asyncio.Protocol):
    """One connection; answers whatever request line is first in what comes."""

    def __init__(self, routes: dict[bytes, bytes], *, paused: bool) -> None:
        self._routes = routes
        self._unready = b"/ready" if paused else b""
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._transport.close)
        for head in data.split(b"\r\n\r\n")[:-1]:
            path = head.split(b" ", 2)[1]
            body = self._routes.get(path)
            status = b"404 Not Found" if body is None else b"200 OK"
            if path == self._unready:
                status = b"503 Service Unavailable"
            body = body or b""
            kind = b"application/json" if body.startswith(b"{") else b"text/plain"
            self._transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (status, kind, len(body), body)
            )


async def serve(runtime: str, *, paused: bool) -> None:
    routes = sglang_routes() if runtime == "sglang" else vllm_routes(paused=paused)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: IdleEngine(routes, paused=paused), "0.0.0.0", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await end_of_input()
    server.close()


def specs(runtime: Runtime, count: int, *, port: int) -> list[EngineSpec]:
    """The engines, as a pool names them."""
    base = 1 if runtime is Runtime.SGLANG else 2
    hosts = [f"127.{base}.{1 + n // 250}.{1 + n % 250}:{port}" for n in range(count)]
    return [EngineSpec(id=host, url=f"http://{host}", runtime=runtime) for host in hosts]


@contextmanager
def engine_process(
    runtime: Runtime, count: int, *, paused: bool = False
) -> Iterator[list[EngineSpec]]:
    """So many idle engines, in a process of their own."""
    command = [sys.executable, "-m", "tests.bench.support_engines", runtime.value]
    command += ["paused"] if paused else []
    process = subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield specs(runtime, count, port=port)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], paused="paused" in sys.argv[2:]))
