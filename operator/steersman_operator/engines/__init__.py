"""Control of SGLang and vLLM engines: what each calls a pause or a sleep, and what ends it."""

from steersman_operator.engines.client import EngineClient, EngineKeys
from steersman_operator.engines.dialect import FLUSH_SKIPPED, CallResult, EngineDialect
from steersman_operator.engines.identify import Identity, dialect_for, identify
from steersman_operator.engines.perform import Engines

__all__ = [
    "FLUSH_SKIPPED",
    "CallResult",
    "EngineClient",
    "EngineDialect",
    "EngineKeys",
    "Engines",
    "Identity",
    "dialect_for",
    "identify",
]
