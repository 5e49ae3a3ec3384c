"""Several proxies of one machine on one port."""

from pathlib import Path

import pytest

from steersman_sim.engine import EngineConfig
from tests.proxy.support import rig, running


async def test_proxies_share_a_port_and_both_serve(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    config = EngineConfig(speed=0)
    async with rig(tmp_path, {"e0": "7"}, config=config, reuse_port=True) as first:
        rows = [{"id": "e0", "url": first.engines["e0"].url, "weightVersion": "7"}]
        async with running(
            tmp_path / "second", rows, port=first.app.port, reuse_port=True
        ) as second:
            assert second.app.port == first.app.port
            for _ in range(200):
                # A new connection each time: which proxy gets it is the system's choice.
                status, _, _ = await first.generate(1, connection="close")
                assert status == 200

            assert first.engine("e0").load.total > 0
            assert second.engine("e0").load.total > 0


async def test_a_port_is_not_shared_unasked(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=0)) as first:
        with pytest.raises(OSError, match="cannot listen on"):
            async with running(tmp_path / "second", [], port=first.app.port):
                pass
