"""The directory and the core: what is told, when, and what survives the operator."""

from pathlib import Path

from steersman.clock import FakeClock
from steersman_operator.fleet.events import SpecChanged
from steersman_operator.shell.file_store import FileStore
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.manifests import ManifestsFollower
from tests.manifests.support import write
from tests.resources.support import engine_text


class Followed:
    """One operator's life with a directory."""

    def __init__(self, directory: Path) -> None:
        layout = Layout(directory)
        layout.make()
        store = FileStore(layout.store)
        store.open()
        self.told: list[SpecChanged] = []
        self.follower = ManifestsFollower(layout, ledger=store, clock=FakeClock())
        self.follower.on_pools = self.told.append

    @property
    def models(self) -> dict[str, tuple[str, ...]]:
        """What the core was told last."""
        return {pool.name: pool.models for pool in self.told[-1].pools}


async def test_who_has_a_model_keeps_it_over_a_restart(tmp_path: Path) -> None:
    write(tmp_path / "llama.yaml", engine_text(name="llama", model="llama"))
    write(tmp_path / "qwen.yaml", engine_text(name="qwen", model="qwen"))
    first = Followed(tmp_path)
    await first.follower.read()
    assert first.models == {"llama": ("llama",), "qwen": ("qwen",)}

    write(tmp_path / "llama.yaml", engine_text(name="llama", model="qwen"))
    await first.follower.read_at_once()
    again = Followed(tmp_path)
    await again.follower.read()

    for one in (first, again):
        assert one.models == {"llama": (), "qwen": ("qwen",)}
        assert list(one.follower.pools.lost) == ["llama"]


async def test_a_directory_that_is_not_there_for_a_moment_costs_nobody_anything(
    tmp_path: Path,
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    write(fleet / "qwen.yaml", engine_text(name="qwen", model="qwen"))
    await Followed(fleet).follower.read()
    write(fleet / "a.yaml", engine_text(name="a", model="qwen"))
    (fleet / "qwen.yaml").rename(tmp_path / "away")
    (fleet / "a.yaml").rename(tmp_path / "a")
    await Followed(fleet).follower.read()
    (tmp_path / "away").rename(fleet / "qwen.yaml")
    (tmp_path / "a").rename(fleet / "a.yaml")

    last = Followed(fleet)
    await last.follower.read()
    assert last.models == {"qwen": ("qwen",), "a": ()}


async def test_the_core_knows_what_was_written_once_it_was_read_at_once(tmp_path: Path) -> None:
    operator = Followed(tmp_path)
    await operator.follower.read()
    write(tmp_path / "a.yaml", engine_text(name="a", model="m"))
    await operator.follower.read_at_once()
    assert operator.models == {"a": ("m",)}
    write(tmp_path / "a.yaml", engine_text(name="a", model="n"))
    await operator.follower.read_at_once()
    assert operator.models == {"a": ("n",)}
    told = len(operator.told)
    await operator.follower.read_at_once()
    assert len(operator.told) == told
