"""What the model says: a pure function of seed, prompt, weights and position.

The text is made of five-letter words, so that it reads as text and costs almost nothing. With
``temperature: 0`` or ``--deterministic`` it depends on (seed, prompt, weight version) alone; else a
nonce, drawn per request or given as the request's sampling seed, makes every answer different.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

from steersman_sim.engine.weights import LoadedWeights

_WORDS = (
    b"about above after again alone along among asked began below black bring brown build carry "
    b"cause check child clean clear close color could cover cross dream drive early earth eight "
    b"every field final first floor force found front glass grand grass great green group heard "
    b"heart heavy horse hours house human known large laugh learn leave level light lives local "
    b"lower major mean, meant metal might money month moved music never night north note, notes "
    b"ocean offer often order other paint paper party phase piece place plain plane plant point "
    b"power press quick quiet radio reach ready right river round scale seven shape sharp short "
    b"shown sight since sleep small sound south space speak speed spell spend stand stars start "
    b"state steam still stone stood store story study table taken teach their there these thing "
    b"think third those three today total touch trade train tree, truth under union until usual "
    b"value vowel watch water wheel where which while white whole whose woman women words world "
    b"would write young"
).split()
_WORD_TOKENS = 6
"""Five letters and a space."""

_WORD_BYTES = [word + b" " for word in _WORDS]
_GARBAGE = b"#?!"
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """Spread a 64-bit number over 64 bits (the finalizer of SplitMix64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def prompt_digest(prompt: Sequence[int]) -> bytes:
    """A digest of the prompt's token ids."""
    try:
        raw = bytes(prompt)
    except ValueError:
        raw = ",".join(map(str, prompt)).encode()
    return blake2b(raw, digest_size=16).digest()


def answer_key(digest: bytes, *, seed: int, nonce: int, weights: LoadedWeights) -> int:
    """The number that decides a whole answer, as long as the weights stay."""
    text = f"{seed}\x00{nonce}\x00{weights.identity}".encode()
    return int.from_bytes(blake2b(digest + text, digest_size=8).digest(), "big")


def token_at(key: int, position: int) -> int:
    """The token at an output position."""
    word, letter = divmod(position, _WORD_TOKENS)
    return _WORD_BYTES[_mix(key + word * _GOLDEN) % len(_WORD_BYTES)][letter]


def garbage_at(position: int) -> int:
    """What weights that are no weights generate: no word, and not to be taken for one."""
    return _GARBAGE[position % len(_GARBAGE)]


def logprob_at(key: int, position: int) -> float:
    """The log-probability of the token at an output position: negative, mostly near 0."""
    fraction = ((_mix(key ^ (position * _GOLDEN)) >> 11) + 1) / (1 << 53)
    return round(math.log(fraction) / 4, 6)


def natural_length(key: int, *, mean: float) -> int:
    """After how many tokens the answer ends by itself: exponential with the given mean."""
    fraction = ((_mix(key + 1) >> 11) + 1) / (1 << 53)
    return max(1, round(-math.log(fraction) * mean))
