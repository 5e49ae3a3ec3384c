"""Files of keys: one a line, ``#`` begins a comment line. No message ever repeats a line."""

from pathlib import Path

from steersman.documents.values import checked_key

MAX_BYTES = 1024**2


def read_keys(path: Path) -> tuple[str, ...]:
    """All keys of a file, in its order, each once.

    :raises ValueError: if the file cannot be read, has none, or has a line that cannot be a key.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} is larger than 1 MiB; it must have one key a line")
    # Latin-1 reads everything; the check of each key then refuses what is not ASCII.
    keys: dict[str, None] = {}
    for number, line in enumerate(content.decode("latin-1").split("\n"), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        try:
            keys[checked_key(key)] = None
        except ValueError as error:
            raise ValueError(f"line {number} of {path} {error}") from None
    if not keys:
        raise ValueError(f"{path} has no key; write one a line")
    return tuple(keys)


def read_key(path: Path) -> str:
    """The only key of a file.

    :raises ValueError: as :func:`read_keys`, and if there are several.
    """
    keys = read_keys(path)
    if len(keys) > 1:
        raise ValueError(f"{path} has {len(keys)} keys, where one is needed")
    return keys[0]
