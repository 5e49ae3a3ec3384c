"""What a sim engine is told at launch: the knobs of a real engine, and those of the simulation."""

import enum

import msgspec


class Runtime(enum.Enum):
    """Which engine is imitated. The value is the spelling of the command line."""

    SGLANG = "sglang"
    VLLM = "vllm"


INSTANT = 0.0
"""The ``speed`` at which no engine time passes at all: every step takes one turn of the loop."""


class TimeModel(msgspec.Struct, frozen=True, kw_only=True):
    """How long one iteration of the scheduler takes, in engine seconds.

    ``t = step + context * sum(context tokens) + sequence * batch + c / prefill * (1 + L / long)``
    with ``c`` prefill tokens at context length ``L``. The defaults mix published measurements of
    two machines (Qwen3-32B on two H100, a 30B-A3B on one); calibrate them from one engine before
    quoting a number.
    """

    step_s: float = 0.010
    """Fixed cost of one iteration."""
    context_s: float = 25e-9
    """Cost of reading the KV of one context token in decode."""
    sequence_s: float = 20e-6
    """Cost of one more sequence in the batch."""
    prefill_tokens_per_s: float = 15_926.0
    """Rate of prefill at a short context."""
    chunk_tokens: int = 2_048
    """At most so many prefill tokens in one iteration."""
    long_context_tokens: float = 200_000.0
    """Context length at which a prefill token costs twice as much."""

    def decode(self, *, context_tokens: int, batch: int) -> float:
        """Engine seconds of an iteration that decodes ``batch`` sequences and prefills nothing."""
        return self.step_s + self.context_s * context_tokens + self.sequence_s * batch

    def prefill(self, tokens: int, *, context: int) -> float:
        """Engine seconds that ``tokens`` prefill tokens add, at a context of ``context`` tokens."""
        return tokens / self.prefill_tokens_per_s * (1.0 + context / self.long_context_tokens)


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long the engine's own waits and control operations take.

    The first group is in engine seconds (divided by ``speed``; nothing when ``speed`` is instant).
    The health probe is in wall seconds, since its deadline is the point of it.
    """

    refit_s: float = 0.5
    release_s: float = 0.2
    resume_s: float = 0.2
    abort_poll_s: float = 1.0
    """SGLang 0.5.23 repeats its abort-all this often while ``pause_generation`` mode abort waits."""

    health_poll_s: float = 1.0
    """SGLang 0.5.23 looks this often whether the scheduler has spoken since the probe."""
    health_timeout_s: float = 20.0
    """SGLang 0.5.23 ``SGLANG_HEALTH_CHECK_TIMEOUT``."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The launch arguments of one sim engine."""

    runtime: Runtime = Runtime.SGLANG
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose; the choice is kept over restarts."""
    model: str = "sim-model"
    weight_version: str = "default"
    """The label that the engine reports until it is told another one."""
    api_key: str | None = None
    admin_api_key: str | None = None
    """SGLang only."""

    keep_alive_s: float = 5.0
    """Wall seconds after which an idle connection is closed (uvicorn's default, in both engines)."""
    startup_s: float = 0.0
    """Engine seconds after the start during which health probes fail (SGLang)."""
    max_running: int = 256
    """At most so many sequences of one rank in a batch."""
    kv_tokens: int = 400_000
    """Capacity of one rank's KV pool."""
    block_size: int = 16
    context_length: int = 131_072
    dp_size: int = 1
    tp_size: int = 1
    load_interval_steps: int = 15
    """SGLang ``--load-snapshot-publish-interval``: decode steps between two load snapshots."""
    stream_incremental: bool = False
    """SGLang: whether chunks of ``/generate`` carry only the new tokens instead of all so far."""
    health_generation: bool = True
    """SGLang ``SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION``: whether ``/health`` is a real probe."""
    weights_cpu_backup: bool = False
    """SGLang ``--enable-weights-cpu-backup``: whether weights survive a release of their memory."""
    weight_transfer: str | None = "nccl"
    """vLLM ``--weight-transfer-config`` backend; ``None`` is an engine launched without it."""
    dev_mode: bool = True
    """vLLM ``VLLM_SERVER_DEV_MODE``: without it every control route is a 404."""
    scale_out: bool = True
    """vLLM ``--enable-scale-out``: without it ``/inference/v1/generate`` answers 403."""
    load_tracking: bool = False
    """vLLM ``--enable-server-load-tracking``: without it ``/load`` always says 0."""

    seed: int = 0
    deterministic: bool = False
    """Give every request the output that ``temperature: 0`` would give it."""
    mean_output_tokens: float = 128.0
    """Mean length at which an answer ends by itself (``stop``), drawn per request."""
    speed: float = 1.0
    """Engine seconds per wall second; 0 is instant."""
    manual: bool = False
    """Take no step of the scheduler by itself: the owner calls :meth:`SimEngine.step`."""
    time: TimeModel = TimeModel()
    timings: Timings = Timings()
    journal_limit: int = 10_000
    """The oldest entries of the journal are dropped beyond this number."""
    journal_body_bytes: int = 1 << 20
    """Of a longer request body the journal keeps only this much."""

    def __post_init__(self) -> None:
        """Refuse what no engine could be launched with.

        Raises:
            ValueError: a size is not positive, or a factor is negative.
        """
        for name in ("max_running", "kv_tokens", "block_size", "context_length", "dp_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kv_tokens < self.block_size:
            raise ValueError("kv_tokens must hold at least one block")
        if self.speed < 0:
            raise ValueError("speed must not be negative")
        if self.mean_output_tokens < 1:
            raise ValueError("mean_output_tokens must be at least 1")
