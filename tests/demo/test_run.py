"""Whole runs: the command as a user starts it, with its processes, files and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

START_WITHIN = 60.0
"""Seconds; generous, as the machine may be busy with other tests."""


class Run:
    """One ``steersman demo`` under way."""

    def __init__(self, process: "subprocess.Popen[str]", *, output: Path, temporary: Path) -> None:
        self.process = process
        self.temporary = temporary
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_WITHIN
        while not true():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(timeout=START_WITHIN)


@pytest.fixture
def demo(tmp_path):
    """Starts a run with its own directory for temporary files; nothing outlives the test."""

    @contextmanager
    def start(*arguments: str) -> Iterator[Run]:
        temporary, output = tmp_path / "temporary", tmp_path / "output"
        temporary.mkdir()
        with output.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "steersman.cli", "demo", *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(temporary)},
                text=True,
            )
        run = Run(process, output=output, temporary=temporary)
        family: list[psutil.Process] = []
        try:
            run.until(lambda: len(run.children) == 4)
            family = run.children
            yield run
            assert not [one for one in family if one.is_running()], "a process was left behind"
        finally:
            for one in (*family, psutil.Process(process.pid) if process.poll() is None else None):
                if one is not None and one.is_running():
                    one.kill()
            process.wait()

    return start


def test_a_short_run_keeps_every_promise_and_leaves_nothing_behind(demo, tmp_path):
    plot = tmp_path / "run.png"
    with demo("--duration", "6", "--rate", "40", "--plain", "--plot", str(plot)) as run:
        assert run.end() == 0, run.text
    lines = run.text.splitlines()
    assert "All promises kept." in lines
    assert any(line.endswith("all engines serve 8") for line in lines)
    assert any("engine-1 is paused" in line for line in lines)
    assert any("engine-2 is asleep" in line for line in lines)
    stale = next(line for line in lines if line.startswith("stale dispatches"))
    assert stale.split()[2:4] == ["0", "kept"]
    assert int(stale.split()[5]) > 20, "enough requests asked for the newest weights"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not list(run.temporary.iterdir())


def test_the_endpoint_stays_up_with_keep(demo):
    with demo("--duration", "4", "--rate", "20", "--keep") as run:
        run.until(lambda: "stays up until Ctrl-C" in run.text and "/status" in run.text)
        url = next(word for word in run.text.split() if word.endswith("/generate"))
        body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 4}}).encode()
        request = urllib.request.Request(url, data=body, headers={"content-type": "text/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["x-smg-weight-version"] == "8"
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0, run.text
    assert not list(run.temporary.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_and_its_processes(demo, number, code):
    with demo("--plain") as run:
        run.until(lambda: "all engines serve 7" in run.text)
        run.process.send_signal(number)
        assert run.end() == code
    assert "Traceback" not in run.text
    assert not list(run.temporary.iterdir())


@pytest.mark.parametrize("victim", ["engine-2", "proxy"])
def test_the_death_of_a_process_is_told_with_its_log(demo, victim):
    with demo("--plain") as run:
        run.until(lambda: "all engines serve 7" in run.text)
        engines = [one for one in run.children if "sim-engine" in one.cmdline()]
        (proxy,) = [one for one in run.children if "proxy" in one.cmdline()]
        (proxy if victim == "proxy" else engines[1]).kill()
        assert run.end() == 1
    assert f"steersman demo: {victim} ended by itself (signal SIGKILL)" in run.text
    assert "listening on http://127.0.0.1:" in run.text, "the end of its log"
    assert "Traceback" not in run.text
    (directory,) = run.temporary.iterdir()
    assert f"The logs are in {directory}" in run.text
    assert {path.name for path in directory.iterdir()} >= {"proxy.log", "engine-1.log"}


def test_a_plot_into_nowhere_is_refused_before_anything_starts(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "steersman.cli", "demo", "--plot", str(tmp_path / "no" / "x.png")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"steersman demo: no directory {tmp_path / 'no'}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--duration", "1"], ["--rate", "nan"], ["--engines", "1"], ["--plot", "run.txt"]],
)
def test_senseless_arguments_are_refused(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "steersman.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert arguments[0] in done.stderr
