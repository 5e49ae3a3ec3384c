"""A recorded run happens again bit for bit, and a difference is found."""

import io
from pathlib import Path

import pytest

from steersman.cli import main
from steersman.engine import Control
from steersman_operator.fleet.events import Tick
from steersman_operator.fleet.record import Record, Recorder, RecordUnreadable, digest_of
from steersman_operator.fleet.state import State
from tests.fleet.support import TIMING, Bench


class Recorded(Bench):
    """A bench that writes down what happens to it."""

    def do(self, event):
        if not hasattr(self, "file"):
            self.file = io.BytesIO()
            self.recorder = Recorder(self.file, timing=TIMING, state=State())
        self.recorder.record(event)
        commands = super().do(event)
        self.recorder.check(self.state)
        return commands


def recorded() -> Recorded:
    bench = Recorded("ab", proxies="xy")
    for goal in (Control.ASLEEP, Control.ACTIVE, Control.PAUSED):
        bench.want(goal)
        assert bench.run(20, lambda goal=goal: bench.settled(goal))
    return bench


def test_a_replay_ends_in_the_same_state_with_the_same_commands() -> None:
    bench = recorded()
    steps = list(Record.read(bench.file.getvalue(), name="it").replay())
    assert steps[-1].state == bench.state
    assert steps[-1].digest == digest_of(bench.state)
    assert [command for step in steps for command in step.commands] == bench.log
    assert not any(step.differs for step in steps)
    assert all(step.recorded for step in steps)


def test_a_replay_begins_with_the_state_of_the_header() -> None:
    bench = Bench()
    file = io.BytesIO()
    recorder = Recorder(file, timing=TIMING, state=bench.state)
    bench.want(Control.PAUSED)
    recorder.record(Tick(now=500.0))
    steps = list(Record.read(file.getvalue(), name="it").replay())
    assert steps[0].state.now == 500.0
    assert steps[0].state.engines.keys() == bench.state.engines.keys()


def test_a_crash_in_the_middle_of_a_line_loses_that_line_only() -> None:
    data = recorded().file.getvalue()
    whole = Record.read(data, name="it")
    cut = Record.read(data[:-5], name="it")
    assert cut.cut_off and not whole.cut_off
    assert [event for event, _ in cut.events] == [event for event, _ in whole.events]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}\n",
        b'{"type":"header","version":99}\n',
        b'{"type":"header"}\n{"type":"Nonsense"}\n',
        b'{"type":"header"}\n\xff\n',
        b"not json\n",
    ],
)
def test_what_is_no_record_is_told_from_one(data: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="it"):
        Record.read(data, name="it")


def write(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    return str(path)


def test_the_command_prints_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = recorded()
    assert main(["replay", write(tmp_path, bench.file.getvalue())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(Record.read(bench.file.getvalue(), name="it").events)
    assert "Elected(term=1)" in lines[0]
    assert any("Call sleep a" in line for line in lines)
    assert digest_of(bench.state) in lines[-1]


def test_the_command_shows_engines_commands_and_one_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, recorded().file.getvalue())
    assert main(["replay", path, "--show", "engines"]) == 0
    assert "a: open active" in capsys.readouterr().out
    assert main(["replay", path, "--show", "commands"]) == 0
    assert "urgent: a=closed" in capsys.readouterr().out
    assert main(["replay", path, "--at", "3"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0].split()[0] == "3"
    assert "b: closed at -" in output
    assert main(["replay", path, "--at", "100000"]) == 1
    assert main(["replay", path + ".not"]) == 1


def test_the_command_stops_where_the_state_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = recorded().file.getvalue().splitlines(keepends=True)
    digests = [number for number, line in enumerate(lines) if b'"digest"' in line]
    lines[digests[6]] = b'{"type":"digest","state":"0000000000000000"}\n'
    assert main(["replay", write(tmp_path, b"".join(lines))]) == 1
    captured = capsys.readouterr()
    assert "step 7: the record says that the state was 0000000000000000" in captured.err
    assert "b: " in captured.out
