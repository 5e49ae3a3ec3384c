"""The metrics port: probes, metrics, status, explain; and how `steersman explain` shows it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from steersman.cli import main
from steersman.clock import FakeClock
from steersman.policy import LatestOnly
from steersman.settings import PoolSettings
from steersman_proxy.admin import admin_app
from steersman_proxy.admin.status import StatusPage
from steersman_proxy.commands.explain import plain_lines, yaml_lines
from steersman_proxy.health.tracker import HealthTracker, ProbeResult
from steersman_proxy.metrics import ProxyMetrics, TableStatus
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import RouteRequest, Wait
from steersman_proxy.settings import PassiveHealth, ProbeSettings
from tests.observation.support import (
    CLOSED,
    engine_of,
    fleet_of,
    new_fleet,
    pool_row,
    row,
    table,
)


class Admin:
    """The pages of a fleet at a socket."""

    def __init__(self, fleet, *, clock):
        self.fleet = fleet
        self.clock = clock
        self.draining = False
        self.table = TableStatus(source="table.yaml", age=3.0)
        self.hold = HoldQueue(fleet, clock=clock)
        self.health = HealthTracker(
            fleet, clock=clock, passive=PassiveHealth(), probe=ProbeSettings()
        )
        self.url = ""
        self.session: ClientSession

    async def get(self, path, **options):
        async with self.session.get(self.url + path, **options) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text


@asynccontextmanager
async def admin(fleet, *, clock=None):
    clock = clock or FakeClock()
    pages = Admin(fleet, clock=clock)
    app = admin_app(
        fleet,
        metrics=ProxyMetrics(fleet, rl_enabled=True, hold=pages.hold),
        status=StatusPage(fleet, hold=pages.hold, health=pages.health, clock=clock),
        draining=lambda: pages.draining,
        table=lambda: pages.table,
    )
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    pages.url = f"http://{host}:{port}"
    try:
        async with ClientSession() as pages.session:
            yield pages
    finally:
        await runner.cleanup()


async def test_ready_is_a_table_and_no_shutdown():
    fleet = new_fleet()
    async with admin(fleet) as pages:
        assert (await pages.get("/livez"))[0] == 200
        status, body = await pages.get("/readyz")
        assert (status, body["error"]["code"]) == (503, "no_table")
        fleet.apply(table())
        assert (await pages.get("/readyz"))[0] == 200, "a paused or empty fleet is no reason"
        pages.draining = True
        status, body = await pages.get("/readyz")
        assert (status, body["error"]["code"]) == (503, "draining")
        assert (await pages.get("/livez"))[0] == 200


async def test_metrics_are_text():
    async with admin(fleet_of(row("e1"))) as pages:
        status, text = await pages.get("/metrics")
    assert status == 200
    assert 'smg_worker_health{worker="http://e1.test:30000"} 1.0' in text


@pytest.mark.parametrize("path", ["/", "/nothing", "/v1/models", "/status/x"])
async def test_other_paths_are_404_in_json(path):
    async with admin(fleet_of(row("e1"))) as pages:
        status, body = await pages.get(path)
    assert (status, body["error"]["code"]) == (404, "unknown_url")


async def test_other_methods_are_405_in_json():
    async with (
        admin(fleet_of(row("e1"))) as pages,
        pages.session.post(pages.url + "/status") as answer,
    ):
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"
        assert (await answer.json())["error"]["code"] == "method_not_allowed"


async def test_status_shows_the_table_and_every_engine():
    clock = FakeClock()
    settings = PoolSettings(version_policy=LatestOnly())
    fleet = fleet_of(
        row("e1", cache_generation=4),
        row("e2", version="6"),
        row("e3", paused=True, gate=CLOSED),
        clock=clock,
        settings=settings,
    )
    async with admin(fleet, clock=clock) as pages:
        guard = engine_of(fleet, "e1").load.take()
        pages.health.probe_result(engine_of(fleet, "e1"), ProbeResult.AUTH_FAILED)
        pages.table = TableStatus(
            source="table.yaml",
            digest=table(row("e1")).digest(),
            age=3.0,
            failures=2,
            problems=("t:1: bad",),
        )
        clock.advance(12.5)
        status, content = await pages.get("/status")
        guard.release()
    assert status == 200
    assert content["build"] == {"version": "0.1.0"}
    assert content["uptime"] == 12.5
    assert content["draining"] is False
    assert content["table"] == {
        "epoch": "0.1",
        "digest": table(row("e1")).digest(),
        "source": "table.yaml",
        "age": 3.0,
        "failures": 2,
        "last_error": "t:1: bad",
    }
    (pool,) = content["pools"]
    assert pool["name"] == "main"
    assert pool["fleet_max"] == "7"
    assert pool["version_policy"] == "latest-only"
    assert pool["eligible"] == 1
    assert pool["hold"]["depth"] == 0
    first, second, third = pool["engines"]
    assert first == {
        "id": "e1",
        "url": "http://e1.test:30000",
        "role": "plain",
        "runtime": "sglang",
        "gate": {"open": True, "count": 0},
        "control": "active",
        "version": "7",
        "table_version": "7",
        "trust": "verified",
        "cache_generation": 4,
        "healthy": True,
        "conditions": ["AuthFailed"],
        "breaker": {"state": "closed", "failures": 0, "probing": False, "probe_in": None},
        "in_flight": 1,
        "total": 1,
        "eligible": True,
        "reason": None,
        "message": "eligible",
    }
    assert (second["eligible"], second["reason"]) == (False, "stale")
    assert "too old for latest-only" in second["message"]
    assert (third["reason"], third["gate"]) == ("paused", {"open": False, "count": 1})


async def test_status_shows_what_waits():
    clock = FakeClock()
    fleet = fleet_of(row("e1", gate=CLOSED), clock=clock)
    async with admin(fleet, clock=clock) as pages:
        wait = fleet.select(RouteRequest(pool="main", body_bytes=50))
        assert isinstance(wait, Wait)
        request = RouteRequest(pool="main", body_bytes=50)
        pages.hold.enter(request, wait.lane, on_release=print, on_fail=print)
        _, content = await pages.get("/status")
    assert content["pools"][0]["hold"]["depth"] == 1
    assert content["pools"][0]["hold"]["bytes"] == 50


async def test_status_before_the_first_table():
    async with admin(new_fleet()) as pages:
        status, content = await pages.get("/status")
    assert status == 200
    assert content["table"]["epoch"] is None
    assert content["pools"] == []


async def test_explain_answers_for_any_request():
    pools = [pool_row("main"), pool_row("second")]
    fleet = fleet_of(row("e1"), row("e2", version="6"), row("x", pool="second"), pools=pools)
    async with admin(fleet) as pages:
        _, content = await pages.get("/explain?model=main-model&policy=latest-only&key=k1")
        reasons = {engine["id"]: engine["reason"] for engine in content["engines"]}
        assert reasons == {"e1": None, "e2": "stale"}
        assert {engine["rank"] for engine in content["engines"]} == {1, 2}
        _, content = await pages.get("/explain?pool=second&target=x")
        assert content["chosen"] == "x"
        for query, expected in [
            ("", (400, "model_required")),
            ("?model=nope", (404, "model_not_found")),
            ("?pool=nope", (404, "model_not_found")),
            ("?pool=main&policy=newest", (400, "invalid_version_policy")),
        ]:
            status, content = await pages.get(f"/explain{query}")
            assert (status, content["error"]["code"]) == expected


# --- the command ----------------------------------------------------------------------------------


async def run(capsys, *arguments):
    """``steersman explain`` in a thread, beside the loop that serves it."""
    code = await asyncio.to_thread(main, ["explain", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


async def test_the_command_prints_an_aligned_table(capsys):
    fleet = fleet_of(row("e1"), row("engine-with-a-long-name", version="6", paused=True))
    async with admin(fleet) as pages:
        code, out, err = await run(capsys, "main-model", "--proxy", pages.url)
    assert (code, err) == (0, "")
    facts, header, first, second, summary = out.splitlines()
    assert "pool main, version policy any, fleet max 7" in facts
    assert header.split() == [
        "ENGINE",
        "VERSION",
        "STATE",
        "GATE",
        "IN",
        "FLIGHT",
        "VERDICT",
        "WHY",
    ]
    assert first.split() == ["e1", "7", "active", "open", "0", "eligible"]
    assert second.split()[:6] == ["engine-with-a-long-name", "6", "paused", "open", "0", "paused"]
    assert header.index("VERSION") == first.index("7") == second.index("6 ")
    assert summary == "e1 would serve"
    assert "\x1b" not in out


async def test_the_command_fails_if_nobody_is_eligible(capsys):
    async with admin(fleet_of(row("e1", version="6"))) as pages:
        code, out, _ = await run(
            capsys, "--pool", "main", "--policy", "latest-only", "--proxy", pages.url
        )
    assert code == 1
    assert "stale" in out
    assert "too old for latest-only, the newest is 7" in out


async def test_the_command_in_other_formats(capsys):
    async with admin(fleet_of(row("e1"), row("e2", version=None))) as pages:
        _, wide, _ = await run(capsys, "-o", "wide", "--key", "k", "--proxy", pages.url)
        code, as_json, _ = await run(capsys, "-o", "json", "--proxy", pages.url)
        _, as_yaml, _ = await run(capsys, "-o", "yaml", "--proxy", pages.url)
        _, same = await pages.get("/explain")
    assert "http://e1.test:30000" in wide
    for title in ("RANK", "TRUST", "URL", "ROLE"):
        assert title in wide
    assert code == 0
    assert json.loads(as_json) == same
    assert 'pool: "main"\n' in as_yaml
    assert '  - id: "e1"\n    url: "http://e1.test:30000"\n' in as_yaml
    assert "    version: null\n" in as_yaml


async def test_the_command_says_what_is_wrong(capsys, free_port):
    code, out, err = await run(capsys, "m", "--proxy", f"http://127.0.0.1:{free_port}")
    assert (code, out) == (1, "")
    assert err.startswith(f"steersman explain: no proxy answers at http://127.0.0.1:{free_port}")
    assert "--proxy" in err
    assert err.count("\n") == 1
    async with admin(fleet_of(row("e1"))) as pages:
        code, _, err = await run(capsys, "nope", "--proxy", pages.url.removeprefix("http://"))
        assert code == 1
        assert "no pool serves the model 'nope'" in err
        code, _, err = await run(capsys, "--proxy", pages.url + "/status")
        assert code == 1
        assert "metrics port" in err
    code, _, err = await run(capsys, "--proxy", "ftp://x")
    assert "is not an http or https URL" in err


def test_yaml_reads_back_as_the_same_values():
    from ruamel.yaml import YAML

    content = {
        "text": "no",
        "digits": "042",
        "none": None,
        "yes": True,
        "n": 1.5,
        "empty": [],
        "nested": {"a": {"b": "x: y"}, "none": {}},
        "rows": [{"id": "a", "tags": ["x", "y"]}, {"id": "b\n#c", "tags": []}],
    }
    assert YAML(typ="safe").load("\n".join(yaml_lines(content))) == content


def test_plain_lines_have_no_trailing_spaces():
    assert plain_lines(["A", "WHY"], [["long", ""], ["x", "y"]]) == ["A     WHY", "long", "x     y"]
