"""Durable records in a file, for a fleet on one machine.

The file is replaced as a whole and flushed to disk before a write counts. It carries the term of the
operator that wrote it: one that finds a later term has been taken over and writes no more.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from steersman.errors import SteersmanError
from steersman_operator.fleet.facts import Durable


class StoreConflict(SteersmanError):
    """Another operator has taken over the fleet."""

    code = "store_conflict"
    remedy = "Run one `steersman up` for a directory; the later one has taken over."


class StoreUnreadable(SteersmanError):
    """The records that survive the operator cannot be read."""

    code = "store_unreadable"
    remedy = (
        "Restore the file, or remove it after you have made sure that no engine sleeps: what "
        "Steersman did to engines that cannot be asked is only written there."
    )


class _Contents(msgspec.Struct, kw_only=True):
    version: int = 1
    term: int = 0
    generations: dict[str, int] = {}
    digests: dict[str, str] = {}
    records: dict[str, Durable] = {}


class FileStore:
    """The state file of one directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._contents = _Contents()

    def open(self) -> tuple[int, tuple[Durable, ...]]:
        """Read what is there and begin a new term; returns the term and the records.

        :raises StoreUnreadable: if the file is damaged.
        """
        self._contents = self._read()
        self._contents.term += 1
        self._replace()
        return self._contents.term, tuple(self._contents.records.values())

    async def write(self, record: Durable) -> None:
        """See :class:`~steersman_operator.shell.ports.IntentStore`."""
        self._check()
        self._contents.records[record.engine] = record
        await asyncio.to_thread(self._replace)

    async def forget(self, engine: str) -> None:
        """See :class:`~steersman_operator.shell.ports.IntentStore`."""
        if engine not in self._contents.records:
            return
        self._check()
        del self._contents.records[engine]
        await asyncio.to_thread(self._replace)

    def generation(self, resource: str, digest: str) -> int:
        """The generation of a resource: goes up when the digest of its spec is another one."""
        contents = self._contents
        if contents.digests.get(resource) != digest:
            contents.digests[resource] = digest
            contents.generations[resource] = contents.generations.get(resource, 0) + 1
            self._replace()
        return contents.generations[resource]

    def _check(self) -> None:
        found = self._read().term
        if found != self._contents.term:
            raise StoreConflict(f"{self._path} was taken over by term {found}")

    def _read(self) -> _Contents:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return _Contents()
        except OSError as error:
            raise StoreUnreadable(f"{self._path}: {error.strerror}") from None
        try:
            return msgspec.json.decode(raw, type=_Contents)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreUnreadable(f"{self._path}: {error}") from None

    def _replace(self) -> None:
        draft = self._path.with_suffix(".new")
        data = msgspec.json.format(msgspec.json.encode(self._contents), indent=1)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
