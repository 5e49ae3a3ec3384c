"""Whole runs: the command as a user starts it, with its processes, files and exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

START_WITHIN = 90.0
"""Seconds; generous, as the machine may be busy with other tests."""

STAYING = {"sim-engine", "up", "steersman_operator.standalone.main", "proxy"}
"""Words of the command lines of the seven processes of a run over three engines."""

GONE_WITHIN = 10.0
"""Seconds that the system gets to end what it ends by itself."""

COMMANDS = [
    "pause rollout --engine engine-1",
    "resume rollout --engine engine-1",
    "sleep rollout --engine engine-2",
    "wake rollout --engine engine-2",
    "pause rollout --engine engine-3",
]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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
        """Processes that stay: engines, `up`, operator and proxies."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in found if any(word in STAYING for word in command_of(one))]

    def child(self, word: str) -> psutil.Process:
        return next(one for one in self.children if word in command_of(one))

    @property
    def directory(self) -> Path:
        (found,) = self.temporary.iterdir()
        return found

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
    # A short path: sockets lie in it.
    temporary = Path(tempfile.mkdtemp(prefix="st-"))

    @contextmanager
    def start(*arguments: str) -> Iterator[Run]:
        output = tmp_path / "output"
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
            run.until(lambda: "all engines serve 7" in run.text)
            family = run.children
            assert len(family) == 7
            yield run
            restarted = [
                one for one in psutil.process_iter() if str(temporary) in " ".join(command_of(one))
            ]
            _, alive = psutil.wait_procs([*family, *restarted], timeout=GONE_WITHIN)
            assert not alive, "a process was left behind"
        finally:
            for one in (*family, psutil.Process(process.pid) if process.poll() is None else None):
                if one is not None and one.is_running():
                    one.kill()
            process.wait()

    yield start
    shutil.rmtree(temporary, ignore_errors=True)


def test_a_short_run_keeps_every_promise_and_leaves_nothing_behind(demo, tmp_path):
    plot = tmp_path / "run.png"
    with demo("--duration", "12", "--rate", "40", "--plain", "--plot", str(plot)) as run:
        assert run.end() == 0, run.text
    lines = run.text.splitlines()
    assert "All promises kept." in lines
    assert any(line.endswith("all engines serve 8") for line in lines)
    for command in COMMANDS:
        assert any(line.endswith(f"  $ steersman {command}") for line in lines), command
    assert any("engine-1 is paused" in line for line in lines)
    assert any("engine-2 is asleep" in line for line in lines)
    stale = next(line for line in lines if line.startswith("stale dispatches"))
    assert stale.split()[2:4] == ["0", "kept"]
    assert int(stale.split()[5]) > 20, "enough requests asked for the newest weights"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not list(run.temporary.iterdir())


def test_the_endpoint_stays_up_with_keep(demo):
    with demo("--duration", "12", "--rate", "20", "--plain", "--keep") as run:
        run.until(lambda: "stays up until Ctrl-C" in run.text and "steersman resume" in run.text)
        url = next(word for word in run.text.split() if word.endswith("/generate"))
        body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 4}}).encode()
        request = urllib.request.Request(url, data=body, headers={"content-type": "text/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["x-smg-weight-version"] == "8"
        engines = typed(line_with(run.text, "get engines"))
        assert [line.split()[1:4] for line in engines.splitlines()] == [
            ["POOL", "STATE", "DESIRED"],
            *[["rollout", "Active", "Active"]] * 3,
        ]
        assert "rolloutengine/rollout paused" in typed(line_with(run.text, "pause rollout"))
        assert "rolloutengine/rollout resumed" in typed(line_with(run.text, "resume rollout"))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0, run.text
    assert not list(run.temporary.iterdir())


def line_with(text: str, command: str) -> str:
    """The line of the invitation that has the command."""
    return next(line for line in text.splitlines() if f"steersman {command} -f" in line)


def typed(line: str) -> str:
    """Run a line as a person does."""
    words = line.split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "steersman.cli", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_and_its_processes(demo, number, code):
    with demo("--plain") as run:
        run.process.send_signal(number)
        assert run.end() == code
    assert "Traceback" not in run.text
    assert not list(run.temporary.iterdir())


def test_a_signal_during_a_command_ends_that_too(demo):
    with demo("--plain") as run:
        run.until(lambda: "$ steersman pause" in run.text)
        family = psutil.Process(run.process.pid).children(recursive=True)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert not psutil.wait_procs(family, timeout=GONE_WITHIN)[1]
    assert "Traceback" not in run.text


def test_a_demonstration_that_is_killed_leaves_no_processes_behind(demo):
    with demo("--plain") as run:
        run.process.kill()
        assert run.process.wait() == -signal.SIGKILL
        # That all of them end is what every run is looked at for.


@pytest.mark.parametrize("victim", ["engine-2", "up"])
def test_the_death_of_a_process_is_told_with_its_log(demo, victim):
    with demo("--plain") as run:
        engines = [one for one in run.children if "sim-engine" in command_of(one)]
        (run.child("up") if victim == "up" else engines[1]).kill()
        assert run.end() == 1
    assert f"steersman demo: {victim} ended by itself (signal SIGKILL)" in run.text
    # The end of its log.
    assert ("serving on" if victim == "up" else "listening on http://127.0.0.1:") in run.text
    assert "Traceback" not in run.text
    assert f"The logs are in {run.directory}" in run.text
    logs = {path.name for path in run.directory.iterdir()}
    assert logs >= {"up.log", "engine-1.log", "rollout.yaml"}


def test_the_death_of_a_proxy_is_told_by_the_log_of_up(demo):
    with demo("--plain") as run:
        run.child("proxy").kill()
        assert run.end() == 1
    assert "steersman demo: a proxy's http://127.0.0.1:" in run.text
    assert "ended (signal 9)" in run.text, "the end of its log"
    assert f"The logs are in {run.directory}" in run.text
    assert "Traceback" not in run.text


def test_an_operator_that_is_killed_is_started_again_and_the_run_goes_on(demo):
    with demo("--duration", "12", "--rate", "30", "--plain") as run:
        run.until(lambda: "$ steersman sleep" in run.text)
        run.child("steersman_operator.standalone.main").kill()
        assert run.end() == 0, run.text
    assert "All promises kept." in run.text


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
    [["--duration", "11.9"], ["--rate", "nan"], ["--engines", "1"], ["--plot", "run.txt"]],
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
