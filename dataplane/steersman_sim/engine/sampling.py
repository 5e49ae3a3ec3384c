"""From the sampling parameters of a request to :class:`Sampling`, for both dialects."""

from typing import Any

from steersman_sim.engine.sequence import Sampling


def _integer(values: dict[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    return value


def _number(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def copies(values: dict[str, Any]) -> int:
    """``n``: how many answers.

    Raises:
        ValueError: it is no integer of at least 1.
    """
    count = _integer(values, "n", 1)
    if count < 1:
        raise ValueError(f"n must be at least 1, got {count}")
    return count


def parse_sampling(
    values: dict[str, Any], *, max_tokens: int, min_tokens: int, seed_name: str
) -> Sampling:
    """Read the parameters that change what is generated; others are accepted and ignored.

    ``max_tokens`` and ``min_tokens`` are already read, since each route spells them in its own way.

    Raises:
        ValueError: a parameter has a wrong type or range.
    """
    temperature = _number(values, "temperature", 1.0)
    if temperature < 0:
        raise ValueError(f"temperature must be non-negative, got {temperature}.")
    if min_tokens < 0 or max_tokens < 0:
        raise ValueError("the number of new tokens must not be negative")
    stop = values.get("stop")
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("stop must be a string or a list of strings")
    ids = values.get("stop_token_ids") or []
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise ValueError("stop_token_ids must be a list of integers")
    seed = values.get(seed_name)
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(values.get("ignore_eos", False)),
        greedy=temperature == 0,
        seed=seed if isinstance(seed, int) else None,
        stop=tuple(texts),
        stop_token_ids=frozenset(ids),
        keep_stop=bool(values.get("no_stop_trim") or values.get("include_stop_str_in_output")),
    )


def limit(values: dict[str, Any], *names: str, default: int) -> int:
    """The first of several spellings of a token limit that is given.

    Raises:
        ValueError: it is no integer.
    """
    for name in names:
        if values.get(name) is not None:
            return _integer(values, name, default)
    return default
