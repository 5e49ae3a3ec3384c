"""Runs a command in this process, as ``steersman`` would."""

import argparse
import sys
import threading
import time
from typing import Any, NamedTuple

import pytest

from steersman.cli import EXIT_FAILED, Command
from steersman.errors import SteersmanError


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(command: Command, *arguments: str) -> int:
    """The exit code; what :func:`steersman.cli.main` does with a command."""
    parser = argparse.ArgumentParser(prog="steersman x", allow_abbrev=False)
    command.configure(parser)
    try:
        return command.run(parser.parse_args(arguments))
    except SteersmanError as error:
        print(f"steersman x: {error}", file=sys.stderr)
        return EXIT_FAILED
    except SystemExit as leaving:
        return int(leaving.code or 0)


class Beside:
    """A command that runs in a thread, while the test changes the fleet."""

    def __init__(self, command: Command, *arguments: str) -> None:
        self.code: int | None = None

        def work() -> None:
            self.code = run(command, *arguments)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def end(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the command does not end"
        assert self.code is not None
        return self.code


class Screen:
    """What was printed so far, for a test that waits for a line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def read(self) -> "Screen":
        out, err = self._capsys.readouterr()
        self.out += out
        self.err += err
        return self

    def until(self, text: str) -> None:
        end = time.monotonic() + 20
        while text not in self.read().out + self.err:
            assert time.monotonic() < end, f"{text!r} is not in {self.out!r} {self.err!r}"
            time.sleep(0.01)


def ran(capsys: pytest.CaptureFixture[str], command: Command, *arguments: Any) -> Ran:
    capsys.readouterr()
    code = run(command, *map(str, arguments))
    return Ran(code, *capsys.readouterr())
