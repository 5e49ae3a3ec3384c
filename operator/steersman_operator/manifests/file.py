"""One manifest: when it is read, and what of it is in force."""

import hashlib
import time
from pathlib import Path

from steersman.documents import parse_documents, read_content
from steersman.errors import DocumentError
from steersman_operator.manifests.looking import Signature, signature
from steersman_operator.manifests.saved import SavedManifests
from steersman_operator.resources import ReadFile, Resource, read_resources

BREATH = 0.0002
"""Seconds that reading pauses for now and then, so that the event loop gets the interpreter."""

_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space, and the mark that some editors begin a file with."""

Look = tuple[Signature, ...]
"""Signatures of the file and of the key files that it names."""


class ManifestFile:
    """A file of the directory. A bad one keeps in force what was good."""

    def __init__(self, path: Path, *, saved: SavedManifests) -> None:
        self.path = path
        self.name = path.name
        self.resources: tuple[Resource, ...] = ()
        """Those of the last good version."""
        self.problems: tuple[str, ...] = ()
        """What is wrong with the file now."""
        self._saved = saved
        self._key_files: tuple[str, ...] = ()
        self._seen: Look | None = None
        self._read_at: Look | None = None
        self._digest: bytes | None = None
        self._parsed: tuple[bytes, Look] | None = None

    def poll(self, *, listed: bool, first: bool) -> bool:
        """Look at the file; whether resources or problems changed.

        It is read when two looks in a row find the same new signature, as it may be half written
        before. ``first`` reads it at once.
        """
        look = self._look()
        settled = first or look == self._seen
        self._seen = look
        if not settled or look == self._read_at:
            return False
        if look[0] is None and not listed:
            return self._gone()
        return self._read(look, first=first)

    @property
    def gone(self) -> bool:
        """Whether there is no such file any more."""
        return self._seen is not None and self._seen == self._read_at and self._seen[0] is None

    def is_read(self, content: bytes) -> bool:
        """Whether ``content`` is what was read last, good or bad."""
        return self._digest == _digest(content)

    def parse(self, content: bytes) -> ReadFile:
        """What ``content`` would be in this file."""
        try:
            documents = parse_documents(self.name, content, breathe=_breathe)
        except DocumentError as error:
            return ReadFile(problems=tuple(error.problems))
        return read_resources(documents, base=self.path.parent)

    def take(self, content: bytes, found: ReadFile, *, written: Signature) -> None:
        """A good version that was written by us; the next look reads it once more."""
        self._in_force(content, found)
        self._digest = _digest(content)
        self._seen = (written, *map(signature, self._key_files))
        self._parsed, self._read_at = (self._digest, self._seen[1:]), None

    def _look(self) -> Look:
        return (signature(self.path), *map(signature, self._key_files))

    def _gone(self) -> bool:
        self._saved.forget(self.name)
        self._read_at, self._seen = (None,), (None,)
        self._key_files, self._digest, self._parsed = (), None, None
        changed = bool(self.resources or self.problems)
        self.resources, self.problems = (), ()
        return changed

    def _read(self, look: Look, *, first: bool) -> bool:
        before = (self.resources, self.problems)
        try:
            content = read_content(self.path)
        except DocumentError as error:
            # Looked at again each time: what is wrong need not be seen in the signature.
            self.problems = tuple(
                problem.replace(str(self.path), self.name) for problem in error.problems
            )
            self._restore(first=first)
            self._digest = self._parsed = None
            return before != (self.resources, self.problems)
        if signature(self.path) != look[0]:
            return False
        # A write right after the first look can leave the signature as it is, if the clock of the
        # file system is coarse; so a file that was not seen for a while is read once more.
        self._read_at = None if first else look
        self._digest = _digest(content)
        if self._parsed == (self._digest, look[1:]):
            return False
        found = self.parse(content)
        if found.problems or not found.resources:
            self._restore(first=first)
        if found.problems:
            self.problems = found.problems
        elif self.resources and not found.resources:
            self.problems = (self._emptied(content),)
        else:
            self._in_force(content, found)
        self._parsed = (self._digest, look[1:])
        if found.key_files != self._key_files:
            # They were read before they were looked at.
            self._key_files = found.key_files
            self._seen, self._read_at, self._parsed = self._look(), None, None
        return before != (self.resources, self.problems)

    def _emptied(self, content: bytes) -> str:
        """A save that failed, a full disk and ``> FILE`` leave nothing; who means it removes it."""
        found = "has no resources" if content.strip(_BLANK) else "is empty"
        return (
            f"{self.name}: {found}; its last good version stays in force; remove the file to remove "
            "its resources"
        )

    def _in_force(self, content: bytes, found: ReadFile) -> None:
        self.resources, self.problems = found.resources, ()
        self._saved.write(self.name, content)

    def _restore(self, *, first: bool) -> None:
        """What was in force before this process began, if the file is bad at its start."""
        content = self._saved.read(self.name) if first else None
        if content is not None:
            self.resources = self.parse(content).resources


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _breathe() -> None:
    time.sleep(BREATH)
