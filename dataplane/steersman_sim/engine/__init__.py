"""The sim engine: a believable SGLang 0.5.23 or vLLM 0.32 without a GPU.

One object, :class:`SimEngine`, is one engine. It runs in a test's event loop, or as a process
through ``steersman sim-engine``.
"""

from steersman_sim.engine.config import INSTANT, EngineConfig, Runtime, TimeModel, Timings
from steersman_sim.engine.engine import SimEngine
from steersman_sim.engine.faults import PRESETS, REFIT, Fault, Lie, When
from steersman_sim.engine.journal import Entry, Generation, Journal

__all__ = [
    "INSTANT",
    "PRESETS",
    "REFIT",
    "EngineConfig",
    "Entry",
    "Fault",
    "Generation",
    "Journal",
    "Lie",
    "Runtime",
    "SimEngine",
    "TimeModel",
    "Timings",
    "When",
]
