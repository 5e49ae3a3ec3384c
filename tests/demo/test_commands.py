import psutil
import pytest

from steersman import __version__
from steersman_sim.demo.commands import Commands, typed
from steersman_sim.demo.options import DemoError


def test_a_command_is_shown_as_it_is_typed():
    assert typed(["pause", "rollout", "--engine", "engine-1"]) == (
        "steersman pause rollout --engine engine-1"
    )


async def test_a_command_that_succeeds(tmp_path):
    assert __version__ in await Commands(tmp_path).run("--version")


async def test_a_command_that_fails_is_told_with_its_words(tmp_path):
    with pytest.raises(DemoError) as caught:
        await Commands(tmp_path).run("pause", "rollout")
    text = str(caught.value)
    assert text.startswith("`steersman pause rollout` ended with exit code 1:\n")
    assert f"no fleet runs in {tmp_path}" in text, "the directory need not be named"


async def test_a_command_that_does_not_end_is_ended(tmp_path):
    with pytest.raises(DemoError, match=r"`steersman sim-engine .*` has not ended after 0\.2 s"):
        await Commands(tmp_path, within=0.2).run("sim-engine", "--runtime", "sglang", "--port", "0")
    assert not psutil.Process().children()
