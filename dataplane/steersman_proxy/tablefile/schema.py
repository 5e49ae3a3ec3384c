"""The table file: pools, and the engines of each.

Each attribute's docstring is its line in ``docs/configuration/table.md``.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from steersman.documents.model import Model
from steersman.documents.names import (
    EngineUrl,
    RoleName,
    RuntimeName,
    Text,
    VersionName,
    named_version,
    unique,
)
from steersman.documents.problems import one_of, what
from steersman.documents.urls import engine_id
from steersman.documents.values import (
    Kind,
    Label,
    Whole,
    choice,
    word,
)
from steersman.engine import Control, Role, Runtime, Trust
from steersman_proxy.config.names import pool_name

MAX_ENGINES = 4096
TAGS = ("weights", "kv_cache", "cuda_graph")
"""What an engine can give up in a sleep."""
ASLEEP_TAGS = ("weights", "kv_cache")
"""What ``control: asleep`` means without ``released``."""


def _tag(value: Any) -> str:
    if not isinstance(value, str) or value not in TAGS:
        raise ValueError(one_of(value if isinstance(value, str) else what(value), TAGS))
    return value


def _unequal(ordinals: dict[str, int]) -> dict[str, int]:
    ranks: dict[int, str] = {}
    for name, rank in ordinals.items():
        if rank in ranks:
            raise ValueError(f"gives {rank} to both {ranks[rank]} and {name}; ranks must differ")
        ranks[rank] = name
    return ordinals


EngineId = Annotated[str, PlainValidator(engine_id), Kind("text")]
PoolName = Annotated[str, PlainValidator(pool_name), Kind("text")]
Tag = Annotated[str, PlainValidator(_tag), Kind(", ".join(f"`{tag}`" for tag in TAGS))]
MaxVersion = Annotated[str | None, PlainValidator(named_version), Kind("weight version")]
ControlName = Annotated[
    Control, PlainValidator(choice(Control)), Kind("`active`, `paused`, `asleep`")
]
TrustName = Annotated[
    Trust, PlainValidator(choice(Trust)), Kind("`verified`, `unsynced`, `uncertain`, `unknown`")
]
GateName = Annotated[
    Literal["open", "closed"], PlainValidator(word("open", "closed")), Kind("`open`, `closed`")
]


class EngineEntry(Model):
    """One inference server reachable at one base URL."""

    url: EngineUrl
    """Base URL, without a path. Two entries with one URL are an error."""
    id: EngineId | None = None
    """Name in headers, logs and metrics, unique in the file. By default host and port of the URL."""
    role: RoleName = Role.PLAIN
    """The part of a request that it computes."""
    runtime: RuntimeName = Runtime.UNKNOWN
    """The engine's software; decides which route is safe to probe."""
    zone: Text | None = None
    """Failure domain or rack, for people."""
    gate: GateName = "open"
    """A closed gate admits no new requests; those that may wait, wait until it opens."""
    control: ControlName | None = None
    """What the engine is doing; by default `active`, or what `paused` and `released` say. A paused
    engine makes requests wait, a sleeping one does not."""
    paused: bool | None = None
    """Whether generation is paused; needed only for an engine that sleeps *and* is paused."""
    released: list[Tag] | None = None
    """Memory given up by a sleep; by default, if `control` is `asleep`, weights and kv_cache."""
    weight_version: Label = None
    """The version of its weights, as the text that is written. Missing or `default`: its weights
    have no version."""
    trust: TrustName | None = None
    """How sure the writer is of `weightVersion`; by default `verified` if there is one, else
    `unknown`."""
    failed: bool = False
    """Known to be broken: it serves nothing and its version does not count."""
    boot_id: Text | None = None
    """Anything that changes when the engine's process starts anew."""
    cache_generation: Whole = 0
    """To be raised when its weights are changed or its cache is flushed: what was known of its KV
    blocks is void."""

    @model_validator(mode="after")
    def _one_state(self) -> Self:
        """Refuse what ``control`` contradicts: the two axes refine it, they do not change it."""
        match self.control:
            case Control.ACTIVE if self.paused or self.released:
                key = "paused" if self.paused else "released"
                raise ValueError(f"control is active, but {key} is set; keep one of the two")
            case Control.PAUSED if self.paused is False:
                raise ValueError("control is paused, but paused is false; keep one of the two")
            case Control.PAUSED if self.released:
                raise ValueError(
                    "control is paused, but released is set; "
                    "write control: asleep with paused: true"
                )
            case Control.ASLEEP if self.released == []:
                raise ValueError("control is asleep, but released is empty; delete `released`")
        return self


class PoolEntry(Model):
    """Identical engines that serve one model."""

    name: PoolName
    """Unique in the file; `pools.NAME` of the configuration and the header `x-steersman-pool`
    refer to it."""
    model: Text | None = None
    """The name under which clients ask for it. A model belongs to one pool."""
    models: Annotated[list[Text], AfterValidator(unique)] | None = None
    """Instead of `model`: several names for the same; the first is the one that is listed."""
    default: bool = False
    """Whether requests without a model go here; at most one pool."""
    fleet_max: MaxVersion = None
    """The newest version of the pool. Without it the proxy finds out: at the first read every
    verified version counts, later a version counts once an engine is seen open with it."""
    ordinals: Annotated[dict[VersionName, Whole], AfterValidator(_unequal)] = Field(
        default_factory=dict
    )
    """Explicit order of versions, for names that do not order themselves: version to rank."""
    engines: list[EngineEntry] = Field(default_factory=list)
    """The engines of the pool."""

    @model_validator(mode="after")
    def _model_or_models(self) -> Self:
        if self.model is not None and self.models is not None:
            raise ValueError("model and models are both set; keep one of them")
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model, whichever key has them."""
        return (self.model,) if self.model is not None else tuple(self.models or ())


class TableFile(Model):
    """The whole file."""

    pools: list[PoolEntry]
    """The pools; `[]` is a fleet without engines."""
