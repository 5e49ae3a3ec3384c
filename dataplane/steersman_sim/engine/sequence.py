"""One sequence: a prompt on its way through the scheduler, and what became of it."""

import enum
import time
from typing import Protocol

import msgspec

from steersman_sim.engine.generation import answer_key, logprob_at, natural_length, prompt_digest
from steersman_sim.engine.kvcache import Lease
from steersman_sim.engine.spans import Marks
from steersman_sim.engine.tokens import decode
from steersman_sim.engine.weights import Stamp


class Phase(enum.Enum):
    """Where a sequence is."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    DONE = enum.auto()


class FinishKind(enum.Enum):
    """Why a sequence ended; the value is the spelling of both engines."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Finish(msgspec.Struct, frozen=True):
    """How a sequence ended."""

    kind: FinishKind
    matched: int | str | None = None
    """The stop token or stop text that was met."""
    message: str = ""
    """What an abort says of itself."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of generation, after its dialect was parsed."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    greedy: bool = False
    """Whether the answer depends on nothing but (seed, prompt, version)."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop: bool = False
    """Whether a stop text that was met stays in the answer."""


class Sink(Protocol):
    """Who listens to a sequence. Called by the scheduler, between steps, without waiting."""

    def progress(self, sequence: "Sequence") -> None:
        """At least one output token was added."""
        ...

    def finished(self, sequence: "Sequence") -> None:
        """Nothing will be added any more. Called exactly once."""
        ...


class Sequence:
    """The state of one sequence. Owned by one scheduler at a time."""

    __slots__ = (
        "abort_message",
        "admitted",
        "arrived",
        "cached_tokens",
        "capacity",
        "computed",
        "digest",
        "digests",
        "finish",
        "first_token",
        "garbage",
        "key",
        "lease",
        "logprobs",
        "marks",
        "nonce",
        "output",
        "phase",
        "prompt",
        "rank",
        "retractions",
        "rid",
        "salt",
        "sampling",
        "sink",
        "stale_cached_tokens",
        "stop_after",
        "target",
        "uncached",
    )

    def __init__(
        self,
        rid: str,
        *,
        prompt: list[int],
        sampling: Sampling,
        sink: Sink,
        nonce: int,
        salt: str = "",
        want_logprobs: bool = False,
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self.sampling = sampling
        self.sink = sink
        self.salt = salt
        self.nonce = nonce
        self.rank = 0
        self.digest = prompt_digest(prompt)
        self.digests: list[bytes] = []
        self.output: list[int] = []
        self.logprobs: list[float] | None = [] if want_logprobs else None
        self.marks: Marks = []
        self.key = 0
        self.garbage = False
        """Whether the weights that it is generated with are no weights."""
        self.stop_after = 0
        """Output length at which EOS comes; 0 as long as no token was made, or for never."""
        self.phase = Phase.WAITING
        self.lease: Lease | None = None
        self.capacity = 0
        """Tokens that fit into the blocks held."""
        self.computed = 0
        """Tokens of the context whose KV is computed."""
        self.target = 0
        """Tokens that the running prefill has to compute."""
        self.uncached = 0
        """Prefill tokens that it was expected to need when it was queued."""
        self.cached_tokens = 0
        self.stale_cached_tokens = 0
        self.retractions = 0
        self.abort_message: str | None = None
        self.finish: Finish | None = None
        self.arrived = time.monotonic()
        self.admitted = 0.0
        self.first_token = 0.0

    @property
    def context(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + len(self.output)

    def restamp(self, stamp: Stamp, *, seed: int, mean: float) -> None:
        """Begin a span: from here on tokens are made under ``stamp``."""
        self.marks.append((len(self.output), stamp))
        self.garbage = not stamp.weights.sound
        self.key = answer_key(self.digest, seed=seed, nonce=self.nonce, weights=stamp.weights)
        if self.stop_after == 0 and not self.sampling.ignore_eos:
            self.stop_after = max(natural_length(self.key, mean=mean), self.sampling.min_tokens + 1)

    def note_logprob(self) -> None:
        """Remember the log-probability of the last output token, if the request wants them."""
        if self.logprobs is not None:
            self.logprobs.append(logprob_at(self.key, len(self.output) - 1))

    def stop_text(self) -> str | None:
        """The stop text that the output now ends with, if any."""
        for text in self.sampling.stop:
            size = len(text.encode())
            if text and decode(self.output[-size:]).endswith(text):
                return text
        return None

    def text(self, *, start: int = 0) -> str:
        """The output as text from a token position on, without a stop text that was met."""
        tokens = self.output
        matched = self.finish.matched if self.finish is not None else None
        if isinstance(matched, str) and not self.sampling.keep_stop:
            tokens = tokens[: len(tokens) - len(matched.encode())]
        elif isinstance(matched, int):
            tokens = tokens[:-1]
        return decode(tokens[start:] if start else tokens)
