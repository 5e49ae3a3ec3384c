"""What may be asked for over the local API, and what comes of it."""

from typing import Any, Literal, Protocol

import msgspec

from steersman_operator.fleet.spec import Weights


class Edit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A wish: a state for a pool, or for one engine of it."""

    kind: Literal["RolloutEngine"]
    name: str
    verb: Literal["pause", "resume", "sleep", "wake"]
    engine: str | None = None


class Refit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New weights for a pool, or the same once more."""

    name: str
    version: str | None = None
    """``null`` is the version that the pool is to have already, loaded once more."""
    path: str | None = None
    """Where the engines read the weights. Without it they are those that the version means already,
    else those that a trainer is going to transfer."""
    checksum: str | None = None
    nonce: str | None = None
    """A text that the pool has not had before has the weights loaded once more."""


class Rollout(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What becomes of the rollout of a pool's weights."""

    name: str
    verb: Literal["pause", "resume", "undo"]
    to: str | None = None
    """Of an undo: the version to go back to; by default the one before."""
    since: str | None = None
    """Of an undo: refuse it unless the pool is still to have the WeightVersion of this name."""


class Publish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A trainer has transferred weights into the engines of a pool, all of them."""

    name: str
    version: str


class EditDone(Protocol):
    """What came of an edit."""

    @property
    def generation(self) -> int:
        """The generation of the resource that holds the wish."""
        ...

    @property
    def changed(self) -> bool:
        """Whether the manifest had to be changed for it."""
        ...

    @property
    def message(self) -> str:
        """What else there is to know, for people."""
        ...


class RefitDone(EditDone, Protocol):
    """What came of a refit."""

    @property
    def target(self) -> Weights | None:
        """The weights that the pool is to have from now on."""
        ...


class FleetApi(Protocol):
    """What the API needs of the operator."""

    def status(self) -> dict[str, Any]:
        """The state of the fleet."""
        ...

    async def edit(self, edit: Edit) -> EditDone:
        """Carry a wish into the manifest.

        :raises RequestError: if there is no such resource, or its file cannot be edited.
        """
        ...

    async def refit(self, refit: Refit) -> RefitDone:
        """Have a pool ask for weights.

        :raises RequestError: as :meth:`edit`, and if the version means other weights already.
        """
        ...

    async def rollout(self, rollout: Rollout) -> RefitDone:
        """Pause, resume or undo a rollout.

        :raises RequestError: as :meth:`edit`, and if there is nothing to be undone.
        """
        ...

    async def publish(self, name: str, version: str) -> None:
        """Take a trainer's word that the engines of a pool have the weights of a version.

        :raises RequestError: if there is no such pool, or nobody waits for that version.
        """
        ...

    async def read(self) -> None:
        """Read what has been written into the manifests by now; the status has it afterwards."""
        ...

    async def changed(self) -> None:
        """Wait for the next change of the fleet after the call."""
        ...
