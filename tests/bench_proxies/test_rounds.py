"""A run with real processes: the direct way, and proxies that are no good."""

import sys
from dataclasses import replace

import pytest

from tests.bench.proxies.loads import LOADS
from tests.bench.proxies.pair import Pair
from tests.bench.proxies.peers import SUBJECTS, Found, Place, Subject
from tests.bench.proxies.processes import Cores, Group
from tests.bench.proxies.rounds import Measured, measure

NO_CORES = Cores(proxy=None, load=None)
DIRECT = next(subject for subject in SUBJECTS if subject.name == "direct")


def run(pair: Pair, *subjects: Subject, loads: tuple[str, ...], rounds: int = 1) -> Measured:
    return measure(
        [(subject, Found("-", sys.executable)) for subject in subjects],
        [load.shortened() for load in LOADS if load.name in loads],
        pair=pair,
        cores=NO_CORES,
        rounds=rounds,
        restart=False,
        tell=lambda *_: None,
    )


def test_each_round_has_a_sample_of_each_load(pair: Pair) -> None:
    measured = run(pair, DIRECT, loads=("buffered", "sse-200"), rounds=2)
    for load in ("buffered", "sse-200"):
        series = measured.series[load]["direct"]
        assert series.errors == [{}, {}]
        assert all(one is not None and one["per_second"] > 0 for one in series.samples)
    added = [one and one["ttft_added_us"] for one in measured.series["sse-200"]["direct"].samples]
    assert added == [0, 0]


def test_a_proxy_that_ends_is_told_with_its_last_words(pair: Pair) -> None:
    def command(program: str, _: Place) -> list[str]:
        return [program, "-c", "raise SystemExit('no such flag')"]

    broken = Subject(name="broken", find=lambda _: Found("-", ""), command=command, settings="")
    measured = run(pair, DIRECT, broken, loads=("buffered",))
    series = measured.series["buffered"]["broken"]
    assert series.samples == []
    assert "no such flag" in series.notes[0]
    assert measured.series["buffered"]["direct"].samples


def test_a_proxy_without_the_headers_of_its_work_is_not_measured(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr("tests.bench.proxies.fleet.START", 0.0)
    idle = replace(DIRECT, requires={"x-smg-weight-version": "7"})
    series = run(pair, idle, loads=("buffered",)).series["buffered"]["direct"]
    assert series.samples == []
    assert "x-smg-weight-version is None instead of '7'" in series.notes[0]


@pytest.mark.parametrize("deaf", [False, True], ids=["willing", "deaf"])
def test_a_group_ends_as_a_whole(tmp_path, monkeypatch, deaf: bool) -> None:
    monkeypatch.setattr("tests.bench.proxies.processes.PATIENCE", 0.2)
    program = (
        f"import signal, subprocess, sys, time; {deaf} and signal.signal(15, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "print('ready', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    group = Group([sys.executable, "-c", program], core=None, log=log, folder=tmp_path)
    while "ready" not in log.read_text():
        assert not group.ended
    pids = group.pids()
    assert len(pids) == 2
    assert group.rss() > 1e6
    group.kill()
    assert group.ended
