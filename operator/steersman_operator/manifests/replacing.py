"""Replacing a file at once, so that whoever reads it sees the old one or the new one."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from steersman.documents import read_content
from steersman.errors import DocumentError, ManifestChanged, ManifestNotWritable

SCRATCH_SUFFIX = ".steersman-new"


def current(path: Path) -> bytes:
    """What is in a file now.

    :raises ManifestNotWritable: if it cannot be read.
    """
    try:
        return read_content(path)
    except DocumentError as error:
        raise ManifestNotWritable(str(error)) from None


def replace(path: Path, content: bytes, *, expected: bytes) -> os.stat_result:
    """Put ``content`` into a file that has the content ``expected``; owner and mode stay.

    A link stays, and what it leads to is replaced. Returns the status of the new file.

    :raises ManifestNotWritable: if it cannot be done; says why.
    :raises ManifestChanged: if the file has another content by now.
    """
    target = Path(os.path.realpath(path))
    try:
        before = target.stat()
        _check_writable(target, before)
        return _replace(target, content, expected=expected, before=before)
    except OSError as error:
        raise ManifestNotWritable(
            f"{target} cannot be replaced: {error.strerror}; "
            "change it yourself, where it can be written"
        ) from None


def changed(path: Path) -> ManifestChanged:
    """The error for a file that somebody else has changed."""
    return ManifestChanged(
        f"{path.name} has just been changed, and that has not been read yet; try again"
    )


def _check_writable(target: Path, before: os.stat_result) -> None:
    # For the superuser every file can be written; the mode says what is meant.
    if not before.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise ManifestNotWritable(f"{target} is read-only; make it writable (chmod u+w)")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ManifestNotWritable(
            f"{target.parent} is read-only, and a file in it cannot be replaced; make the "
            "directory writable"
        )


def _replace(
    target: Path, content: bytes, *, expected: bytes, before: os.stat_result
) -> os.stat_result:
    # The name begins with a dot, so that polling leaves it out.
    descriptor, draft = tempfile.mkstemp(
        prefix=f".{target.name[:100]}.", suffix=SCRATCH_SUFFIX, dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            made = os.fstat(descriptor)
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            os.fsync(descriptor)
            if current(target) != expected:
                raise changed(target)
            os.replace(draft, target)  # noqa: PTH105
            after = os.fstat(descriptor)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)  # noqa: PTH108
        raise
    _flush_directory(target.parent)
    return after


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
