"""What the journal of an engine says of the promise: who came while it was closed, what was called."""

from steersman_sim.engine import SimEngine

CALLS = {
    "/pause_generation": "pause",
    "/continue_generation": "resume",
    "/release_memory_occupation": "sleep",
    "/resume_memory_occupation": "wake",
    "/pause": "pause",
    "/resume": "resume",
    "/sleep": "sleep",
    "/wake_up": "wake",
    "/update_weights_from_disk": "refit",
    "/collective_rpc": "refit",
    "/update_weight_version": "label",
}
"""Control routes of both runtimes, by what they do."""

REQUESTS = ("/generate", "/v1/completions")

_OPENING = {"resume", "/wake_up"}
"""What lets requests in again. vLLM resumes by itself when all of it is awake."""


def called(engine: SimEngine) -> list[str]:
    """The calls that were to change the engine, oldest first."""
    return [CALLS[entry.path] for entry in engine.journal.entries if entry.path in CALLS]


def trespassers(engine: SimEngine) -> list[str]:
    """Requests that reached the engine between a call that closed it and the one that opened it.

    Such a request is what Steersman exists to prevent: it hangs in a paused engine, and ends one
    that is woken or resumed under it.
    """
    found: list[str] = []
    boot, closed_by = 0, ""
    for entry in engine.journal.entries:
        if entry.boot != boot:
            boot, closed_by = entry.boot, ""
        call = CALLS.get(entry.path)
        if call in ("pause", "sleep"):
            closed_by = f"{call} ({entry.number})"
        elif _OPENING & {call, entry.path}:
            closed_by = ""
        elif entry.path in REQUESTS and closed_by:
            found.append(f"request {entry.number} came after {closed_by}")
    return found


def misstamped(engine: SimEngine, *versions: str) -> list[str]:
    """Answers that other weights made than those of ``versions``, or than the engine said."""
    found = []
    for number, made in enumerate(engine.journal.generations()):
        truth = [(span.version, span.start, span.end) for span in made.truth]
        stamped = [(span.version, span.start, span.end) for span in made.stamped]
        if truth != stamped or not {version for version, *_ in stamped} <= {*versions}:
            found.append(f"generation {number} was made by {truth}, and says {stamped}")
        elif made.stale_cached_tokens:
            found.append(f"generation {number} was computed in part with older weights")
    return found
