"""Which weights an engine holds, and what it believes they are called. The two can differ.

An engine stamps answers with a *label* that it was told. What generated a token are the *weights*
in memory at that moment. :class:`LoadedWeights` is the truth, :class:`Stamp` pairs it with the
label; every token remembers the stamp under which it was made, so that a test can hold the stamps
that a client read against the truth.
"""

from hashlib import blake2b

UNDEFINED = "undefined"
"""The version of weights that were dropped from memory and not loaded again."""

HALF_WRITTEN = "half-written"
"""The version of weights whose load has stopped in the middle."""


class LoadedWeights:
    """The contents of the weight memory after one load.

    ``version`` is the name that the loading call gave, or that the first later label gave; ``None``
    as long as nobody named them.
    """

    __slots__ = ("revision", "source", "version")

    def __init__(self, revision: int, *, source: str, version: str | None) -> None:
        self.revision = revision
        self.source = source
        self.version = version

    @property
    def identity(self) -> str:
        """What the generated text depends on: equal for equal versions on different engines."""
        return self.source if self.version is None else self.version

    @property
    def sound(self) -> bool:
        """Whether anything sensible can be generated with them."""
        return self.source not in (UNDEFINED, HALF_WRITTEN)

    def checksum(self) -> str:
        """A hex digest of the contents: equal for the same source on different engines."""
        return blake2b(self.source.encode(), digest_size=32).hexdigest()

    def __repr__(self) -> str:
        return f"<weights {self.revision} {self.version!r} from {self.source!r}>"


class Stamp:
    """A label and the weights that it was put on. Compared by identity: a new one per change."""

    __slots__ = ("label", "weights")

    def __init__(self, label: str, weights: LoadedWeights) -> None:
        self.label = label
        self.weights = weights


class RankWeights:
    """The weights of one scheduler, with the label that its scheduler stamps on tokens."""

    def __init__(self, *, label: str) -> None:
        self.stamp = Stamp(label, LoadedWeights(0, source=f"launch:{label}", version=label))
        self._pretending = False
        """Whether a load was claimed that did not happen: a name that is given then is a lie too."""

    @property
    def label(self) -> str:
        """The version that the scheduler stamps."""
        return self.stamp.label

    @property
    def weights(self) -> LoadedWeights:
        """What is in memory."""
        return self.stamp.weights

    def load(self, source: str, *, version: str | None, shown: bool = True) -> None:
        """Replace the weights. Without ``version``, or if it is not ``shown``, the label stays."""
        self._pretending = False
        loaded = LoadedWeights(self.weights.revision + 1, source=source, version=version)
        self.stamp = Stamp(version if shown and version is not None else self.label, loaded)

    def relabel(self, version: str) -> None:
        """Set the label alone.

        Weights that nobody has named yet take the label as their name, also for tokens that they
        made before: a load followed by a label is one refit in two calls.
        """
        weights = self.weights
        if self._pretending or not weights.sound:
            pass
        elif weights.version is None:
            weights.version = version
        elif weights.version != version:
            weights = LoadedWeights(weights.revision, source=weights.source, version=version)
        self.stamp = Stamp(version, weights)

    def discard(self) -> None:
        """Drop the weights: until the next load they are undefined, whatever the label says."""
        self._spoil(UNDEFINED)

    def tear(self) -> None:
        """Write half of other weights over these. The label stays what it was."""
        self._spoil(HALF_WRITTEN)

    def pretend(self, version: str | None) -> None:
        """Keep the weights, and let the label be that of others."""
        self._pretending = True
        self.stamp = Stamp(self.label if version is None else version, self.weights)

    def _spoil(self, what: str) -> None:
        self._pretending = False
        spoilt = LoadedWeights(self.weights.revision + 1, source=what, version=what)
        self.stamp = Stamp(self.label, spoilt)
