"""Replacing a file at once, so that whoever reads it sees the old one or the new one."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

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


def create(path: Path, content: bytes, *, like: Path) -> os.stat_result:
    """Make a file that is not there yet, for the owner and with the mode of ``like``; whoever reads it
    sees all of it. Returns its status.

    :raises ManifestNotWritable: if it cannot be made, or is there already; says why.
    """
    try:
        model = like.stat()
        descriptor, draft = tempfile.mkstemp(
            prefix=f".{path.name[:100]}.", suffix=SCRATCH_SUFFIX, dir=path.parent
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                _fill(file, content, like=model)
            _put(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)  # noqa: PTH108
        _flush_directory(path.parent)
        return path.stat()
    except FileExistsError:
        raise ManifestNotWritable(
            f"{path.name} is there already, and is not in force; mend it or remove it"
        ) from None
    except OSError as error:
        raise ManifestNotWritable(
            f"{path} cannot be made: {error.strerror}; make the directory writable"
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
            _fill(file, content, like=before)
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


def _put(draft: str, path: Path) -> None:
    """Give a file its name, unless there is one of that name."""
    try:
        os.link(draft, path)  # a rename would replace what somebody else has just made
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without links; nobody makes a file of this name but by accident.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(draft, path)  # noqa: PTH105


def _fill(file: BinaryIO, content: bytes, *, like: os.stat_result) -> None:
    """Write a new file to the disk, with the owner and the mode of another."""
    file.write(content)
    file.flush()
    made = os.fstat(file.fileno())
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(file.fileno(), like.st_uid, like.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
    os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
