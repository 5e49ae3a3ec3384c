"""Which weights an engine holds, and what it believes they are called. The two can differ.

An engine stamps answers with a *label* that it was told. What generated a token are the *weights*
in memory at that moment. :class:`LoadedWeights` is the truth, :class:`Stamp` pairs it with the
label; every token remembers the stamp under which it was made, so that a test can hold the stamps
that a client read against the truth.
"""

from hashlib import blake2b

UNDEFINED = "undefined"
"""The version of weights that were dropped from memory and not loaded again."""


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

    @property
    def label(self) -> str:
        """The version that the scheduler stamps."""
        return self.stamp.label

    @property
    def weights(self) -> LoadedWeights:
        """What is in memory."""
        return self.stamp.weights

    def load(self, source: str, *, version: str | None) -> None:
        """Replace the weights. Without ``version`` the label stays what it was."""
        loaded = LoadedWeights(self.weights.revision + 1, source=source, version=version)
        self.stamp = Stamp(self.label if version is None else version, loaded)

    def relabel(self, version: str) -> None:
        """Set the label alone.

        Weights that nobody has named yet take the label as their name, also for tokens that they
        made before: a load followed by a label is one refit in two calls.
        """
        weights = self.weights
        if weights.version is None:
            weights.version = version
        elif weights.version != version:
            weights = LoadedWeights(weights.revision, source=weights.source, version=version)
        self.stamp = Stamp(version, weights)

    def discard(self) -> None:
        """Drop the weights: until the next load they are undefined, whatever the label says."""
        lost = LoadedWeights(self.weights.revision + 1, source=UNDEFINED, version=UNDEFINED)
        self.stamp = Stamp(self.label, lost)
