"""The tokenizer: one token per byte of UTF-8, so that both ways are exact and cost nothing.

Ids 0 to 255 are bytes, 256 ends a text (EOS). A trainer may send any other id; it is written as
``<|ID|>`` when it has to become text. So every text comes back exactly from ``encode`` and
``decode``, and every list of byte tokens that is UTF-8 comes back from ``decode`` and ``encode``.
"""

from collections.abc import Iterable, Sequence

EOS = 256
VOCABULARY = 151_936
"""The size that is reported; ids are not checked against it."""


def encode(text: str) -> list[int]:
    """The token ids of a text."""
    return list(text.encode("utf-8", "surrogatepass"))


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids. EOS is silent; bytes that are no UTF-8 become U+FFFD."""
    try:
        return bytes(tokens).decode("utf-8", "replace")
    except ValueError:
        return _decode_special(tokens).decode("utf-8", "replace")


def _decode_special(tokens: Iterable[int]) -> bytes:
    parts = bytearray()
    for token in tokens:
        if 0 <= token < 256:
            parts.append(token)
        elif token != EOS:
            parts += f"<|{token}|>".encode()
    return bytes(parts)
