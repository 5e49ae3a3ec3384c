"""What docs/refit.md tells trainers to write does what it says."""

import asyncio
import re
from pathlib import Path
from typing import Any

from steersman_operator.client import FleetClient
from steersman_sim.engine import SimEngine
from tests.standalone.test_refits import operated
from tests.up.fleet import manifest, short_directory, sims

PAGE = Path(__file__).parents[2] / "docs" / "refit.md"


def snippet(language: str, beginning: str) -> str:
    """The code of the page in a language that begins so."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [one for one in found if one.startswith(beginning)]
    return str(code)


def closed_and_paused(engine: SimEngine) -> bool:
    return bool(engine.journal.of("/pause_generation"))


async def test_the_trainer_in_python() -> None:
    code = snippet("python", "from pathlib").replace('Path("fleet")', "Path(DIRECTORY)")
    async with sims(2) as engines:
        with short_directory() as directory:
            (directory / "qwen.yaml").write_text(manifest("qwen", engines))
            async with operated(directory) as there:
                seen: list[Any] = []

                def transfer() -> None:
                    seen.extend(closed_and_paused(engine) for engine in engines)
                    (pool,) = FleetClient(directory).status()["pools"]
                    seen.extend((one["phase"], one["gate"]) for one in pool["engines"])

                names: dict[str, Any] = {"DIRECTORY": str(directory)}
                exec(compile(code, str(PAGE), "exec"), names)
                await asyncio.wait_for(asyncio.to_thread(names["push"], "8", transfer), 60)

                assert seen == [True, True, *[("AwaitingTrainer", "closed")] * 2]
                pool = await there.synced("8")
                assert [one["version"] for one in pool["engines"]] == ["8", "8"]
                assert not any(engine.journal.of("/update_weights_from_disk") for engine in engines)


async def test_the_trainer_with_curl() -> None:
    """The lines are those of the page; the commands that they call are tested elsewhere."""
    code = snippet("sh", "operator=")
    bodies = re.findall(r"^\$operator(/v1/\S+) -d '(.*)'$", code, re.MULTILINE)
    assert [path for path, _ in bodies] == ["/v1/refit", "/v1/publish"]
    async with sims(1) as engines:
        with short_directory() as directory:
            (directory / "qwen.yaml").write_text(manifest("qwen", engines))
            async with operated(directory) as there:
                for path, body in bodies:
                    curl = await asyncio.create_subprocess_exec(
                        *("curl", "--disable", "--noproxy", "*", "-s", "--fail", "--unix-socket"),
                        *(str(directory / ".steersman" / "api.sock"), f"http://operator{path}"),
                        *("-d", body),
                        stdout=asyncio.subprocess.PIPE,
                    )
                    out, _ = await asyncio.wait_for(curl.communicate(), 30)
                    assert curl.returncode == 0, out
                    await there.until(
                        lambda pool: any(
                            one["type"] in ("ReadyForWeights", "Synced") and one["status"] == "True"
                            for one in pool["conditions"]
                        )
                    )
                await there.synced("43")
