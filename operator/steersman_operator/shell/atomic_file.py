"""Replaces a file as a whole: after a crash there is the old content or the new one, never a mixture."""

import contextlib
import os
import tempfile
from pathlib import Path

_SUFFIX = ".new"


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of the file; on disk when this returns. For its owner alone.

    :raises OSError: if it cannot be written. The old content is still there then, unless it was only
        the flush of the folder that failed: the new one may be there then.
    """
    # A name of its own: what somebody else is writing must not get mixed with it.
    descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=_SUFFIX, dir=path.parent)
    draft = Path(name)
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
    except BaseException:
        # On a full disk the draft takes the room that the next one needs.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _flush_folder(path.parent)


def remove_drafts(path: Path) -> None:
    """Remove what a crash has left of a replacement. Whoever is writing one now fails."""
    for draft in path.parent.glob(f"{_prefix(path)}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            draft.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _flush_folder(folder: Path) -> None:
    """The name of a file is content of its folder, and flushed with it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
