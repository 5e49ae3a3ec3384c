"""Durable records in a file, for a fleet on one machine.

The file is replaced as a whole and flushed to disk before a write counts. Writes that wait together
are flushed together: a fleet that is paused at once costs a few flushes, not one for each engine.

The file carries the term of the operator that wrote it: one that finds a later term has been taken
over and writes no more.
"""

import asyncio
import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec

from steersman.errors import SteersmanError
from steersman_operator.fleet.facts import Durable
from steersman_operator.shell import atomic_file

_log = logging.getLogger("steersman.store")


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
    created: dict[str, float] = {}
    holders: dict[str, str] = {}
    records: dict[str, Durable] = {}


class _Change:
    """A record to be written, or one to be removed; ``done`` ends when that is on disk."""

    __slots__ = ("done", "engine", "record")

    def __init__(self, engine: str, record: Durable | None) -> None:
        self.engine = engine
        self.record = record
        self.done: Future[None] = Future()


class FileStore:
    """The state file of one directory. Every method may be called from any thread.

    Changes get on disk in the order in which they were asked for. One that failed is not made by a
    later flush either: what is kept here of the records is only what was acknowledged. ``wall`` is
    seconds since 1970.
    """

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._contents = _Contents()
        self._unwritten = False
        """Whether the file may differ from the contents, apart from the changes that wait."""
        self._waiting: list[_Change] = []
        self._flush_comes = False
        """Whether a flush was asked for that has not taken what waits yet."""
        self._memory = threading.Lock()
        """For all of the above; held for moments only."""
        self._disk = threading.Lock()
        """Held while the file is written; taken before the other one."""

    # --- the life of a leader ---------------------------------------------------------------------

    def open(self) -> tuple[int, tuple[Durable, ...]]:
        """Read what is there and begin a new term; returns the term and the records.

        :raises StoreUnreadable: if the file is damaged.
        :raises OSError: if it cannot be written.
        """
        with self._disk:
            atomic_file.remove_drafts(self._path)
            found = self._read()
            return self._begin(found, term=found.term + 1)

    def advance(self, at_least: int) -> tuple[int, tuple[Durable, ...]]:
        """Begin a term that is later than ``at_least``, too; returns it and the records.

        Records of an earlier term that are still waiting are not written any more: whoever begins
        the term does not know of them.

        :raises StoreConflict: if another operator has taken over.
        :raises OSError: if it cannot be written. The term stays as it was, if the file is still the
            old one; else nothing can be written until the next operator begins.
        """
        with self._disk:
            self._check()
            return self._begin(self._contents, term=max(self._contents.term, at_least) + 1)

    def _begin(self, contents: _Contents, *, term: int) -> tuple[int, tuple[Durable, ...]]:
        with self._memory:
            begun = _copy(contents)
        begun.term = term
        self._replace(begun)
        with self._memory:
            begun.generations = contents.generations
            begun.digests, begun.created = contents.digests, contents.created
            begun.holders = contents.holders
            self._contents = begun
        return term, tuple(begun.records.values())

    # --- records ----------------------------------------------------------------------------------

    async def write(self, record: Durable) -> None:
        """See :class:`~steersman_operator.shell.ports.IntentStore`."""
        await self._make(_Change(record.engine, record))

    async def forget(self, engine: str) -> None:
        """See :class:`~steersman_operator.shell.ports.IntentStore`."""
        await self._make(_Change(engine, None))

    async def _make(self, change: _Change) -> None:
        with self._memory:
            self._waiting.append(change)
            must_flush, self._flush_comes = not self._flush_comes, True
        if must_flush:
            # Not awaited: it is for the others, too, and whoever asked for it may be cancelled.
            asyncio.get_running_loop().run_in_executor(None, self._flush)
        await asyncio.wrap_future(change.done)

    def _flush(self) -> None:
        """Write all that waits, in one go. When it returns, all that had waited before is done with."""
        with self._disk:
            with self._memory:
                self._flush_comes = False
                # From here on nobody can withdraw; who has before is not heard of again.
                changes = [one for one in self._waiting if one.done.set_running_or_notify_cancel()]
                self._waiting = []
                if not changes and not self._unwritten:
                    return
                draft = _copy(self._contents)
                late = [one for one in changes if not _apply(one, draft)]
                needed = self._unwritten or draft.records != self._contents.records
                self._unwritten = False
            error = self._try(draft, needed=needed)
            with self._memory:
                if error is None:
                    self._contents.records = draft.records
                else:
                    self._unwritten = True
        if error is not None and not changes:
            _log.warning("%s cannot be written: %s", self._path, error)
        for change in late:
            change.done.set_exception(StoreConflict("the record is of a term that is over"))
        for change in changes:
            if change.done.done():
                pass
            elif error is not None:
                change.done.set_exception(error)
            else:
                change.done.set_result(None)

    def _try(self, draft: _Contents, *, needed: bool) -> Exception | None:
        try:
            self._check()
            if needed:
                self._replace(draft)
        except Exception as error:  # noqa: BLE001 - told to each of those who wait
            return error
        return None

    # --- resources --------------------------------------------------------------------------------

    def generation(self, resource: str, digest: str) -> int:
        """The generation of a resource: goes up when the digest of its spec is another one.

        Blocks until that is on disk. If it cannot be written now, it is with whatever is written
        next: a full disk must not keep people from changing what they want.
        """
        with self._memory:
            contents = self._contents
            if contents.digests.get(resource) == digest:
                return contents.generations[resource]
            contents.digests[resource] = digest
            number = contents.generations.get(resource, 0) + 1
            contents.generations[resource] = number
            contents.created.setdefault(resource, self._wall())
            self._unwritten = True
        self._flush()
        return number

    def created(self, resource: str) -> float:
        """When a resource was first asked for here, in seconds since 1970; kept for good."""
        with self._memory:
            known = self._contents.created.get(resource)
            if known is not None:
                return known
            now = self._contents.created[resource] = self._wall()
            self._unwritten = True
        self._flush()
        return now

    def holders(self) -> dict[str, str]:
        """Who has what only one resource can have; see :meth:`hold`."""
        with self._memory:
            return dict(self._contents.holders)

    def hold(self, claims: Mapping[str, str]) -> None:
        """Keep who has what: names of resources by claim, all of them.

        Blocks until that is on disk; as :meth:`generation` if it cannot be written now.
        """
        with self._memory:
            if self._contents.holders == claims:
                return
            self._contents.holders = dict(claims)
            self._unwritten = True
        self._flush()

    # --- the file ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._path.exists():
            # Removed by somebody. What it had is here, and is written again with the next change.
            _log.warning("%s was removed; it is written again", self._path)
            return
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

    def _replace(self, contents: _Contents) -> None:
        atomic_file.replace(
            self._path, msgspec.json.format(msgspec.json.encode(contents), indent=1)
        )


def _copy(contents: _Contents) -> _Contents:
    """To be changed, or written, while the original goes on changing."""
    return _Contents(
        **{field: copy.copy(getattr(contents, field)) for field in _Contents.__struct_fields__}
    )


def _apply(change: _Change, contents: _Contents) -> bool:
    """Make a change; ``False`` if it is of an earlier term, of which a later leader has not known."""
    if change.record is None:
        contents.records.pop(change.engine, None)
    elif change.record.term < contents.term:
        return False
    else:
        contents.records[change.engine] = change.record
    return True
