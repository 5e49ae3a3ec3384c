"""What is known of an engine's control state, and the calls that change it.

Some facts can be read back from an engine at any time, others only be remembered: SGLang tells
nobody which memory is released, and both releasing a released tag and resuming one that is not
released end its process. So what we did is written down, with the boot of the engine that we did it
to, and a call whose outcome was never learnt leaves ``released`` unknown until the engine starts
anew.
"""

from enum import StrEnum

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.spec import Weights

ALL_TAGS = ("kv_cache", "weights")
"""The memory that a sleep gives up."""


class CallKind(StrEnum):
    """One change of an engine's control state."""

    PAUSE = "pause"
    RESUME = "resume"
    SLEEP = "sleep"
    WAKE = "wake"
    """With ``weights`` alone among the tags the engine stays asleep; see ``Call.tags``."""
    REFIT = "refit"
    """Have the engine read weights from disk and name them; all of them, whatever it had before."""
    TRANSFER = "transfer"
    """Nothing that we call: the trainer writes weights into the engine, and says when it is done."""
    LABEL = "label"
    """Name the weights that a trainer has transferred, and drop what was computed with others."""


class Outcome(StrEnum):
    """How a call to an engine ended."""

    OK = "ok"
    REFUSED = "refused"
    """The engine said no and changed nothing."""
    FAILED = "failed"
    """The engine said that it failed; what it is now has to be looked at."""
    UNKNOWN = "unknown"
    """No answer: it may have happened, may happen yet, or not."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The control state of one boot of an engine. ``None`` is not known."""

    boot_id: str | None = None
    paused: bool | None = None
    released: tuple[str, ...] | None = None
    backup: bool | None = None
    """Whether weights survive the release of their memory."""
    lost: bool = False
    """Whether the weights were given up with their memory and are not known to have been loaded
    since: what the engine would generate is undefined, whatever version it shows. (SGLang without
    ``--enable-weights-cpu-backup``, vLLM at level 2.) That they are loaded is told by whoever has
    done it, by letting the engine go on."""
    uncertain: bool = False
    """Whether somebody has begun to write weights, and they are not known to be whole: a refit that
    failed, whose outcome is unknown, or a transfer that was not committed. Only a whole load that is
    verified, or another boot, ends that."""

    @property
    def control(self) -> Control | None:
        """The one word for it, if it is known."""
        if self.released is None or (not self.released and self.paused is None):
            return None
        if self.released:
            return Control.ASLEEP
        return Control.PAUSED if self.paused else Control.ACTIVE

    def reached(self, goal: Control, load: CallKind | None = None) -> bool:
        """Whether nothing is left to be done."""
        return self.control is not None and next_call(self, goal, load) is None

    @property
    def sound(self) -> bool:
        """Whether what the engine would generate is what its version says, as far as is known."""
        return not self.lost and not self.uncertain

    def after(self, kind: CallKind, tags: tuple[str, ...] = ALL_TAGS) -> "Facts":
        """What follows from a call that the engine carried out; ``tags`` are those of a wake.

        Of weights nothing follows: that they are whole is only believed when they were seen.
        """
        match kind:
            case CallKind.PAUSE:
                return msgspec.structs.replace(self, paused=True)
            case CallKind.RESUME:
                return msgspec.structs.replace(self, paused=False)
            case CallKind.SLEEP:
                return msgspec.structs.replace(self, released=ALL_TAGS, lost=self._loses)
            case CallKind.WAKE:
                left = tuple(tag for tag in self.released or () if tag not in tags)
                return msgspec.structs.replace(self, released=left)
            case CallKind.REFIT | CallKind.TRANSFER | CallKind.LABEL:
                return self.during(kind)

    @property
    def _loses(self) -> bool:
        return self.lost or self.backup is not True

    def during(self, kind: CallKind) -> "Facts":
        """What is still certain while a call is under way or its outcome unknown."""
        match kind:
            case CallKind.PAUSE | CallKind.RESUME:
                return msgspec.structs.replace(self, paused=None)
            case CallKind.SLEEP:
                return msgspec.structs.replace(self, paused=None, released=None, lost=self._loses)
            case CallKind.WAKE:
                return msgspec.structs.replace(self, paused=None, released=None)
            case CallKind.REFIT | CallKind.TRANSFER:
                return msgspec.structs.replace(self, uncertain=True)
            case CallKind.LABEL:
                return self

    def loaded(self) -> "Facts":
        """What follows from weights that were loaded whole, and seen."""
        return msgspec.structs.replace(self, lost=False, uncertain=False)

    def seen(self, observation: "Observation", *, boot_id: str | None) -> "Facts":
        """What is known after a look; what was seen wins, what cannot be seen is remembered."""
        released = self.released if observation.released is None else observation.released
        paused = self.paused if observation.paused is None else observation.paused
        backup = self.backup if observation.backup is None else observation.backup
        # Asleep by somebody else's doing.
        given_up = "weights" in (released or ()) and "weights" not in (self.released or ())
        lost = self.lost or (self.released is not None and given_up and backup is not True)
        if lost and released == () and self.paused is True and paused is False:
            # It was left paused, and somebody has let it go on: the weights are loaded.
            lost = False
        return Facts(
            boot_id=boot_id or self.boot_id,
            paused=paused,
            released=released,
            backup=backup,
            lost=lost,
            uncertain=self.uncertain,
        )


def next_call(facts: Facts, goal: Control, load: CallKind | None = None) -> CallKind | None:
    """The next step from what is known towards ``goal``; ``None`` if it is reached.

    With ``load`` weights are to be brought in on the way by that call: into an engine that is paused,
    and before it gets its KV memory back, which a trainer may need the room of. A sleep does without.

    Level-based: whatever came before, the step follows from the facts. Nothing follows from facts
    that are not known: the caller has to look first.
    """
    if facts.released is None:
        raise ValueError("it is not known which memory is released")
    if load is not None and goal is not Control.ASLEEP:
        if "weights" in facts.released:
            return CallKind.WAKE
        if load is CallKind.LABEL:
            return load  # which disturbs nobody; the trainer may have let it go on already
        return CallKind.PAUSE if facts.paused is not True else load
    match goal:
        case Control.ACTIVE:
            if facts.released:
                return CallKind.WAKE
            return CallKind.RESUME if facts.paused is not False else None
        case Control.PAUSED:
            if facts.released:
                return CallKind.WAKE
            return CallKind.PAUSE if facts.paused is not True else None
        case Control.ASLEEP:
            # A sleeping engine is left alone, whether or not it says that it is paused.
            if facts.released:
                return None
            return CallKind.PAUSE if facts.paused is not True else CallKind.SLEEP


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine was seen to be. ``None`` could not be read from this engine."""

    reachable: bool
    boot_id: str | None = None
    paused: bool | None = None
    released: tuple[str, ...] | None = None
    backup: bool | None = None
    """Whether weights survive the release of their memory."""
    version: str | None = None
    """``None`` also for an engine whose weights have no name (``default``)."""
    version_known: bool = False
    """Whether ``version`` was read at all."""
    detail: str = ""


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    """What must survive the operator, for one engine.

    ``facts`` is what was certain, of the boot that it names; ``call`` is the intent: a call that was
    about to be made, and may have been.
    """

    engine: str
    facts: Facts
    call: CallKind | None = None
    goal: Control | None = None
    term: int = 0
    deadline: float = 0.0
    """Seconds that the call may take, from when it is begun."""
    counted_version: str | None = None
    """What the engine contributed to the fleet max; it does so while it is closed, too."""
    weights: Weights | None = None
    """Of the intent: what was to be loaded, if anything."""
    tags: tuple[str, ...] = ()
    """Of the intent: the memory that it names."""
    version_before: str | None = None
    """What the engine showed before the call of the intent."""
    loaded: str = ""
    """The ``Weights.id`` that it was last brought to, of this boot."""
    cache_generation: int = 0
    """See :class:`~steersman.engine.EngineRow`."""
