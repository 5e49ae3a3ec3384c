"""Looking at a directory without reading its files."""

import os
from pathlib import Path

EXTENSIONS = (".yaml", ".yml", ".json")

Signature = tuple[int, int, int, int, int] | None
"""What changes when a file does; ``None`` is no file. The time of change (ctime) is in it, as a file
may become readable, and as some programs set the time of modification back."""


def manifest_names(directory: Path) -> set[str]:
    """The names of the files that are manifests; links are followed, folders are left out.

    :raises OSError: if the directory cannot be listed.
    """
    with os.scandir(directory) as entries:
        return {
            entry.name
            for entry in entries
            if entry.name.lower().endswith(EXTENSIONS)
            and not entry.name.startswith(".")
            and not _is_folder(entry)
        }


def signature(path: Path | str) -> Signature:
    """The signature of what ``path`` leads to."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return signature_of(status)


def signature_of(status: os.stat_result) -> Signature:
    """The signature of a file whose status is known."""
    return (
        status.st_mtime_ns,
        status.st_size,
        status.st_ino,
        status.st_dev,
        status.st_ctime_ns,
    )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
