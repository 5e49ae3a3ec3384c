import io

import msgspec
import pytest
from rich.console import Console

from steersman_sim.demo.command import invitation, program
from steersman_sim.demo.judge import judge
from steersman_sim.demo.live import render
from steersman_sim.demo.options import DemoOptions
from steersman_sim.demo.plain import PlainView, line_of
from steersman_sim.demo.records import NEW, OLD
from steersman_sim.demo.run import Result
from steersman_sim.demo.snapshot import Snapshot, held_words, snapshot
from steersman_sim.demo.summary import summary
from tests.demo.made_up import BEGAN, arrival, eventful_run, outcome, records
from tests.demo.test_proxy_status import fleet_status, page


def during_the_refit() -> Snapshot:
    run = eventful_run()
    run.phases[-1].until = None
    closed = page(is_open=False, depth=1, in_flight=1)
    return snapshot(
        run,
        status=fleet_status(closed, page(is_open=False, depth=2)),
        verdict=judge(run),
        step="engine-1 is paused; the trainer loads 8",
        command="steersman pause rollout --engine engine-1",
        now=BEGAN + 4.0,
    )


def drawn(shown: Snapshot, *, width: int = 84) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, color_system=None)
    console.print(render(shown, options=DemoOptions(), width=width))
    return output.getvalue()


def test_the_table_shows_each_engine_and_what_happens():
    text = drawn(during_the_refit())
    row = next(line for line in text.splitlines() if "engine-1 " in line)
    assert row.strip("│ ").split() == "engine-1 refit to 8 closed 7 1 80 0".split()
    assert "$ steersman pause rollout --engine engine-1" in text
    assert "engine-1 is paused; the trainer loads 8: 3 requests are held" in text
    assert "3 engines · 2 proxies · 60 requests/s" in text
    for name in ("stale dispatches", "stamped answers", "failed requests", "held in total"):
        assert name in text


def test_the_table_fits_into_eighty_columns():
    text = drawn(during_the_refit(), width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "while closed" in text
    assert "unflagged mixed answers" in text


def test_the_held_requests_in_words():
    assert held_words(0) == ""
    assert held_words(1) == ": 1 request is held"
    assert held_words(2) == ": 2 requests are held"


def test_a_plain_line():
    line = line_of(during_the_refit())
    assert line.split("[")[0].split() == (
        "4.0 s sent 200 failed 0 stale 0 stamped 100 % held 3".split()
    )
    assert line.endswith("[7: refit to 8  : 0 running]")


def test_plain_lines_come_once_a_second_and_for_each_step():
    lines = []
    view = PlainView(lines.append)
    shown = during_the_refit()
    view.say("all engines serve 7", at=0.0)
    for elapsed in (0.5, 1.01, 1.2, 1.99, 2.0, 4.5, 4.9):
        view.show(msgspec.structs.replace(shown, elapsed=elapsed))
    assert lines[0] == "   0.0 s  all engines serve 7"
    assert [float(line.split()[0]) for line in lines[1:]] == [1.0, 2.0, 4.5]


def test_the_summary_of_a_good_run():
    run = eventful_run()
    text = summary(run, verdict=judge(run))
    lines = text.splitlines()
    assert lines[0].split() == "engine received by weights 7 by weights 8 while closed".split()
    assert [line.split() for line in lines[1:3]] == [
        ["engine-1", "80", "29", "51", "0"],
        ["engine-2", "120", "120", "0", "0"],
    ]
    assert "200 requests in 10.4 s, 200 answered." in lines
    assert lines[-1] == "All promises kept."
    assert "BROKEN" not in text


def test_the_summary_of_a_bad_run_names_what_broke():
    run = records(
        outcomes=[outcome(number, error=f"status 50{number}") for number in range(1, 8)]
        + [outcome(8, latest_only=True, sent=6.0)],
        arrivals=[arrival(8, at=6.01, versions=(OLD,))],
        maxima=((OLD, 0.0), (NEW, 5.0)),
        ended=BEGAN + 8,
    )
    text = summary(run, verdict=judge(run))
    assert "  status 501\n" in text
    assert "  … and 2 more" in text
    assert text.splitlines()[-1] == "PROMISES BROKEN: failed requests, stale dispatches."


def test_the_invitation_names_commands_that_work(tmp_path):
    result = Result(
        records=records(), verdict=judge(records()), url="http://127.0.0.1:5", directory=tmp_path
    )
    text = invitation(result)
    assert "curl -i http://127.0.0.1:5/generate" in text
    for command in ("get engines", "pause rollout", "resume rollout"):
        assert f"steersman {command} -f {tmp_path}\n" in text + "\n"


@pytest.mark.parametrize("started_as", ["/usr/lib/python3/steersman/cli.py", "-c"])
def test_a_module_is_typed_by_the_name_of_the_program(started_as):
    assert program(started_as) == "steersman"


def test_a_program_that_is_not_on_the_path_is_typed_as_it_was_started(tmp_path, monkeypatch):
    there = tmp_path / "steersman"
    there.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert program(str(there)) == str(there)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program(str(there)) == "steersman"
