"""Real vLLM processes: started, waited for, read and ended."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MODEL = "tiny"
"""The name under which it is served, whatever weights it has."""

READY_WITHIN = 400.0
"""Seconds. Two at once take one to two minutes on two cores that nobody else uses."""

PATIENCE = 20.0
"""Seconds for a call of the tests to an engine, and for its end."""

GUARD = Path(__file__).parent / "guard.py"

ACCESS = re.compile(r'"(?P<method>[A-Z]+) (?P<target>\S+) HTTP/1\.1" (?P<status>\d+)')


class Received(NamedTuple):
    """A line of its access log, written when it had answered."""

    method: str
    target: str
    status: int


class RealEngine:
    """One vLLM: an API server, an engine core and a worker, which end together."""

    def __init__(self, python: Path, *, model: Path, log: Path) -> None:
        self.port = free_port()
        self.log = log
        self._python = python
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- Its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to start it; its output is added to its log."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, GUARD, str(os.getpid())),
                    *(self._python, "-m", "vllm.entrypoints.openai.api_server"),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                    *("--model", self._model, "--served-model-name", MODEL),
                    # The CPU's attention wants blocks of a multiple of 32.
                    *("--enforce-eager", "--block-size", "32", "--max-model-len", "2048"),
                    *("--dtype", "float32", "--seed", "0"),
                    # The route whose answers have spans of versions.
                    "--enable-scale-out",
                ],
                cwd=self.log.parent,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(self.log.parent),
                    "VLLM_SERVER_DEV_MODE": "1",
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "HF_HUB_OFFLINE": "1",
                    "OMP_NUM_THREADS": "1",
                    # Else all of them choose the same core.
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_modestly,
            )

    def wait(self) -> None:
        """Until it is ready."""
        until = time.monotonic() + READY_WITHIN
        while not self.alive():
            assert self._process is not None and self._process.poll() is None, self.last_words()
            assert time.monotonic() < until, f"not ready in time: {self.last_words()}"
            time.sleep(0.25)

    def alive(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def kill(self) -> None:
        """All of its processes at once, as the kernel does when memory runs out."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Ask it, and kill what is left."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2 * PATIENCE)
        self.kill()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    # --- What it got and what it is --------------------------------------------------------------

    def mark(self) -> int:
        """A place in its log, for ``received``."""
        return self.log.stat().st_size

    def received(self, since: int, *, method: str = "POST") -> list[Received]:
        """What arrived since a mark, in the order in which it was answered."""
        text = self.log.read_bytes()[since:].decode(errors="replace")
        found = [
            Received(match["method"], match["target"], int(match["status"]))
            for match in ACCESS.finditer(text)
        ]
        return [one for one in found if one.method == method]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One call past every proxy: status and body, JSON if it is that."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            content = None if body is None else json.dumps(body)
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        with suppress(json.JSONDecodeError):
            return answer.status, json.loads(text)
        return answer.status, text

    def good(self, method: str, path: str, body: Any = None) -> Any:
        """A call that has to succeed."""
        status, answer = self.call(method, path, body)
        assert status == 200, f"{method} {path}: {status} {answer}"
        return answer

    @property
    def paused(self) -> bool:
        return bool(self.good("GET", "/is_paused")["is_paused"])

    @property
    def sleeping(self) -> bool:
        """Also true of an engine that is merely paused."""
        return bool(self.good("GET", "/is_sleeping")["is_sleeping"])

    @property
    def version(self) -> str:
        return str(self.good("GET", "/weight_info")["weight_version"])

    @property
    def sleep_state(self) -> str | None:
        """What its metrics say, the only place that tells asleep from paused."""
        text = str(self.good("GET", "/metrics"))
        found = re.findall(r'vllm:engine_sleep_state\{.*sleep_state="(\w+)".*\} 1\.0', text)
        return found[0] if found else None

    @property
    def running(self) -> int:
        """Requests that it computes, as of its last step."""
        text = str(self.good("GET", "/metrics"))
        found = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
        return 0 if found is None else int(float(found[1]))

    def load(self, path: Path) -> None:
        """New weights, as a trainer gives them: past every proxy, and with an empty cache."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        self.good("POST", "/collective_rpc", body)
        assert self.good("POST", "/reset_prefix_cache") == {"success": True}

    def greedy(self, prompt: str, *, tokens: int = 8) -> str:
        """How its weights continue a text."""
        answer = self.good("POST", "/v1/completions", completion(prompt, tokens=tokens))
        return str(answer["choices"][0]["text"])

    def tokens(self, text: str) -> list[int]:
        """A text as its tokenizer cuts it."""
        return list(self.good("POST", "/tokenize", {"model": MODEL, "prompt": text})["tokens"])


def completion(prompt: str, *, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """The body of a request whose answer depends on the weights alone."""
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    } | more


def start_all(engines: Sequence[RealEngine]) -> None:
    """Together: each spends half of its start waiting for the disk."""
    for engine in engines:
        engine.start()
    for engine in engines:
        engine.wait()


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


def _modestly() -> None:
    os.nice(5)  # behind the tests, the operator and the proxy in the queue
