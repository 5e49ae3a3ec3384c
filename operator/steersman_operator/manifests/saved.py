"""Copies of the last good version of each manifest, for an operator that starts while one is bad.

Without them a restart in the middle of somebody's edit would take pools out of the fleet.
"""

import contextlib
import logging
from pathlib import Path

from steersman.documents import read_content
from steersman.errors import DocumentError

_log = logging.getLogger("steersman.manifests")


class SavedManifests:
    """A directory of copies. A copy that cannot be written is only missed."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """The copy of a file; ``None`` if there is none."""
        if self._directory is None:
            return None
        try:
            return read_content(self._directory / name)
        except DocumentError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep a copy."""
        if self._directory is None or self.read(name) == content:
            return
        draft = self._directory / f".{name}.new"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(self._directory / name)
        except OSError as error:
            _log.warning("%s cannot be kept: %s", self._directory / name, error.strerror)

    def forget(self, name: str) -> None:
        """Remove the copy of a file that is there no more."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()

    def names(self) -> set[str]:
        """All files of which there are copies."""
        if self._directory is None:
            return set()
        try:
            return {path.name for path in self._directory.iterdir() if path.name[0] != "."}
        except OSError:
            return set()
