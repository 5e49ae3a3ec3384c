"""A directory whose pool gets weights, over the lives of several operators."""

from pathlib import Path

import pytest

from steersman.errors import (
    RequestError,
)
from steersman_operator.fleet.spec import Weights
from steersman_operator.manifests import (
    Edited,
    ManifestDirectory,
    ManifestMemory,
    RefitWish,
    RolloutVerb,
)
from steersman_operator.resources import to_pools
from tests.manifests.support import MemoryLedger, problems, settle, write
from tests.resources.support import engine_text

POOL = "# ours\n" + engine_text(
    "endpoints: {static: [{url: 'http://h:1'}]} # engines\nversionHistoryLimit: 2\n", model="Q/q"
)


class Fleet:
    """A directory, and the operators that come and go over it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "fleet"
        self.root.mkdir()
        self.memory = root / "memory.json"
        self.ledger = MemoryLedger()
        write(self.root / "q.yaml", POOL)
        self.restart()

    def restart(self) -> None:
        self.directory = ManifestDirectory(
            self.root, ledger=self.ledger, memory=ManifestMemory(self.memory)
        )
        settle(self.directory)

    def refit(self, version: str | None = None, path: str | None = None, **more: str) -> Edited:
        return self.directory.refit("qwen", RefitWish(version=version, path=path, **more))

    def rollout(self, verb: RolloutVerb, **more: str) -> Edited:
        return self.directory.rollout("qwen", verb=verb, **more)

    @property
    def text(self) -> str:
        return (self.root / "q.yaml").read_text()

    @property
    def files(self) -> list[str]:
        return sorted(found.name for found in self.root.iterdir())

    @property
    def weights(self) -> Weights | None:
        """What the core would be told, by an operator that reads everything anew."""
        fresh = ManifestDirectory(self.root, ledger=self.ledger)
        fresh.poll()
        assert problems(fresh) == ()
        kept = to_pools(self.directory.manifests.engines, self.directory.manifests.versions)
        assert kept == to_pools(fresh.manifests.engines, fresh.manifests.versions)
        assert kept.warnings == {}
        return kept.pools[0].weights

    def refused(self, version: str | None = None, path: str | None = None, **more: str) -> str:
        """The code of the refusal; nothing is changed by it."""
        before = (self.text, self.files, self.directory.manifests)
        with pytest.raises(RequestError) as caught:
            self.refit(version, path, **more)
        assert (self.text, self.files, self.directory.manifests) == before
        return f"{caught.value.status} {caught.value.code}: {caught.value}"
