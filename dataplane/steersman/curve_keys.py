"""Files with one CURVE key of the control socket, public or secret, as ZeroMQ writes them.

A Kubernetes Secret has one such file for each key; ``zmq.curve_keypair()`` makes a pair. No message
ever repeats a key.
"""

import string
from pathlib import Path

_Z85 = frozenset(string.ascii_letters + string.digits + ".-:+=^!/*?&<>()[]{}@%$#")
_LENGTH = 40


def read_curve_key(path: Path) -> str:
    """The key of a file.

    :raises ValueError: if the file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(1024)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    key = content.decode("latin-1").strip()
    if len(key) != _LENGTH or not _Z85.issuperset(key):
        raise ValueError(f"{path} is not a CURVE key: {_LENGTH} characters in Z85, nothing else")
    return key
