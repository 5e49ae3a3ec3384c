"""What ``steersman up`` shows, in lines and as a table."""

import io
from typing import Any

import pytest
from rich.console import Console

from steersman_operator.commands.up_live import LiveView
from steersman_operator.commands.up_plain import PlainView, metrics_of
from steersman_operator.standalone.settings import UpSettings
from tests.api.support import draining, engine, fleet, paused, pool, proxy
from tests.commands.rollouts import having, lacking, rolling

SETTINGS = UpSettings()

FIRST = "waiting for the first table"
PENDING = {"phase": "Pending", "gate": "closed", "problem": FIRST, "waiting": FIRST}
UNKNOWN = {"phase": "Unknown", "gate": "closed", "control": "unknown", "version": None}


def young(*engines: dict[str, Any]) -> dict[str, Any]:
    content = fleet(pool("qwen", *engines))
    content["operator"]["published"] = False
    return content


def drawn(status: dict[str, Any], *, width: int) -> list[str]:
    """The lines of the last picture."""
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=True)
    with LiveView(console) as view:
        view.show(status, SETTINGS)
    plain = Console(file=io.StringIO(), width=width)
    plain.print(view._live.renderable)
    assert isinstance(plain.file, io.StringIO)
    return [line.rstrip() for line in plain.file.getvalue().splitlines()]


def test_lines_from_the_start_until_all_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.show(young(engine("e0", **UNKNOWN)), SETTINGS)
    view.show(young(engine("e0", **PENDING)), SETTINGS)
    view.show(fleet(pool("qwen", engine("e0")), proxies=[proxy()]), SETTINGS)

    assert [line for line in capsys.readouterr().out.splitlines() if "/e0" in line] == [
        "qwen/e0: active, closed, version 7, Pending: waiting for the first table",
        "qwen/e0: active, open, version 7",
    ]


def test_a_line_about_what_takes_no_requests(capsys: pytest.CaptureFixture[str]) -> None:
    why = "takes no requests until it shows version 7"
    unsynced = engine("e0", version=None, trust="unsynced", withheld=why)
    PlainView().show(fleet(pool("qwen", unsynced)), SETTINGS)

    assert f"qwen/e0: active, open, {why}\n" in capsys.readouterr().out


def test_a_line_about_weights_that_are_on_their_way(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    for status in (
        rolling(lacking("e0"), lacking("e1"), paused=True, fleet_max="41"),
        rolling(having("e0"), lacking("e1"), fleet_max="42"),
        rolling(having("e0"), having("e1"), fleet_max="42"),
    ):
        view.show(status, SETTINGS)

    assert [line for line in capsys.readouterr().out.splitlines() if "ready" in line] == [
        "qwen: Active, 2/2 engines ready, newest version 41, 0 of 2 have 42, paused",
        "qwen: Active, 2/2 engines ready, newest version 42, 1 of 2 have 42",
        "qwen: Active, 2/2 engines ready, newest version 42",
    ]


@pytest.mark.parametrize(
    ("ports", "shown"),
    [
        ((29000,), "proxy http://127.0.0.1:29000"),
        ((29000, 29001, 29002), "proxies http://127.0.0.1:29000 to 29002"),
        ((29000, 31000), "proxies http://127.0.0.1:29000, 31000"),
    ],
)
def test_all_metrics_ports_in_a_line(ports: tuple[int, ...], shown: str) -> None:
    settings = UpSettings(proxies=len(ports), metrics_ports=ports)

    assert metrics_of(settings) == f"metrics: operator http://127.0.0.1:28000, {shown}"


def test_a_wide_terminal_shows_everything() -> None:
    lines = drawn(fleet(pool("qwen", draining("e0"), engine("e1"))), width=140)

    assert lines[2].split() == (
        "POOL ENGINE WANTED STATE GATE PHASE VERSION WHAT IS WAITED FOR".split()
    )
    assert lines[3].endswith("7        waiting for proxy-0.1 (3 in flight)")


NAMES = ("e0", "10.111.222.133:31900", "an-engine-with-a-name-that-is-longer-than-it-ought-to-be")


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100])
@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_terminal_breaks_no_word(width: int, name: str) -> None:
    waits = "waiting for proxy-0.1 (3 in flight), proxy-1.2 (unreachable, silent for 7 s)"
    status = fleet(pool("qwen", draining("e0", waits) | {"name": name}, paused("e1")))

    lines = drawn(status, width=width)

    text = " ".join(" ".join(lines).split())
    words = {"ENGINE", "STATE", "VERSION", "active", "paused", "7", "e1"}
    assert words <= set(text.split())
    assert waits in text or set(waits.split()) <= set(text.split())
    assert all(len(line) <= width for line in lines)
    assert [line for line in lines if line.split()[:1] == ["e1"] or " e1 " in line]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (100, "POOL ENGINE WANTED STATE GATE PHASE VERSION WHAT IS WAITED FOR"),
        (79, "POOL ENGINE STATE GATE PHASE VERSION WHAT IS WAITED FOR"),
        (60, "POOL ENGINE STATE GATE PHASE VERSION"),
        (50, "ENGINE STATE GATE PHASE VERSION"),
        (40, "ENGINE STATE PHASE VERSION"),
    ],
)
def test_what_says_least_goes_first(width: int, titles: str) -> None:
    status = fleet(pool("qwen", engine("10.0.0.1:31900"), engine("10.0.0.2:31900")))

    (head,) = (line for line in drawn(status, width=width) if "ENGINE" in line)
    assert head.split() == titles.split()
