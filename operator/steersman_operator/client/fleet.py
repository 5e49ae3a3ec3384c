"""The client of a standalone fleet."""

import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from steersman.clock import Clock, Deadline, MonotonicClock
from steersman.errors import SteersmanError
from steersman_operator.client.connection import (
    MAX_LINE,
    Lost,
    UnixConnection,
    ask,
    guarded,
    is_held,
)
from steersman_operator.client.errors import FleetSilent, NoFleet, OperatorRefused
from steersman_operator.standalone.layout import Layout

DIRECTORY_VARIABLE = "STEERSMAN_DIR"

PATIENCE = 10.0
"""Seconds that an operator gets to come back and to answer, before a command gives up."""

ABSENCE = 60.0
"""The same during a watch without a time limit of its own."""

SILENCE = 15.0
"""Seconds without a line of a watch after which the operator counts as lost; it tells one every
five."""

PAUSE = 0.1
"""Seconds between two tries."""

T = TypeVar("T")

Status = dict[str, Any]


class Edited(NamedTuple):
    """What came of an edit."""

    generation: int
    changed: bool
    message: str


class Refitted(NamedTuple):
    """What came of a refit, or of a verb of a rollout."""

    generation: int
    changed: bool
    message: str
    target: dict[str, Any] | None
    """The weights that the pool is to have from now on: ``version``, ``source`` (``Disk`` or
    ``External``), ``path``, ``nonce`` and ``checksum``."""


def fleet_directory(option: str | None) -> Path:
    """The directory that is meant: the option's, else ``$STEERSMAN_DIR``, else the current one."""
    return Path(option or os.environ.get(DIRECTORY_VARIABLE) or Path.cwd())


class FleetClient:
    """Asks the operator of the fleet in ``directory``.

    Each method waits for an operator that is just being restarted: as long as ``patience`` seconds,
    and only while a `steersman up` holds the directory. It raises :class:`NoFleet` if none does,
    :class:`FleetForbidden` if the fleet is another user's, and :class:`FleetSilent` if the operator
    does not come back.
    """

    def __init__(
        self,
        directory: Path,
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        clock: Clock | None = None,
    ) -> None:
        self.directory = directory
        self._layout = Layout(directory)
        self._patience = patience
        self._silence = silence
        self._clock = clock or MonotonicClock()

    def status(self) -> Status:
        """The state of the fleet."""
        return self._retried(lambda: self._exchange("GET", "/v1/status"))

    def edit(self, name: str, *, verb: str, engine: str | None = None) -> Edited:
        """Ask for a state of a RolloutEngine, or of one engine of it.

        May reach the operator twice if it is restarted meanwhile; asking for the same twice is asking
        for it once.

        :raises OperatorRefused: with the operator's words.
        """
        wish = {"kind": "RolloutEngine", "name": name, "verb": verb, "engine": engine}
        answer = self._retried(lambda: self._exchange("POST", "/v1/edit", wish))
        return Edited(answer["generation"], answer["changed"], answer["message"])

    def refit(
        self,
        name: str,
        *,
        version: str | None = None,
        path: str | None = None,
        checksum: str | None = None,
        nonce: str | None = None,
    ) -> Refitted:
        """Have a RolloutEngine ask for weights; it is begun, not done, when this returns.

        Without ``path`` they are those that the version means already, else those that a trainer is
        going to transfer. Without ``version`` they are those that it has, loaded once more; a ``nonce``
        of one's own has them loaded once, whoever has to ask twice.

        :raises OperatorRefused: with the operator's words.
        """
        wish = {
            "name": name,
            "version": version,
            "path": path,
            "checksum": checksum,
            "nonce": nonce,
        }
        return self._refitted("/v1/refit", wish)

    def rollout(
        self, name: str, *, verb: str, to: str | None = None, since: str | None = None
    ) -> Refitted:
        """``pause``, ``resume`` or ``undo`` the rollout of a RolloutEngine's weights.

        An undo goes to the version ``to``, by default the one before, and is refused if the
        WeightVersion that it is to have is not ``since`` any more; without it, an operator that is
        restarted meanwhile may undo twice.

        :raises OperatorRefused: with the operator's words.
        """
        wish = {"name": name, "verb": verb, "to": to, "since": since}
        return self._refitted("/v1/rollout", wish)

    def publish(self, name: str, version: str) -> None:
        """Say that weights of that version were transferred into all engines that wait for it.

        :raises OperatorRefused: with the operator's words, such as that no engine waits for it.
        """
        wish = {"name": name, "version": version}
        self._retried(lambda: self._exchange("POST", "/v1/publish", wish))

    def read(self) -> None:
        """Have what has been written into the manifests by now read; the status has it afterwards."""
        self._retried(lambda: self._exchange("POST", "/v1/read"))

    def watch(
        self,
        *,
        timeout: float | None = None,
        on_lost: Callable[[str], None] | None = None,
        read: bool = False,
    ) -> Generator[Status, None, None]:
        """The state now, and again whenever it has changed; ends after ``timeout`` seconds.

        With ``read`` the first state has what has been written into the manifests by now.

        If the operator is restarted the watch goes on with the next one, and ``on_lost`` is told
        once each time.
        """
        end = None if timeout is None else Deadline.after(self._clock, timeout)
        lost_since: float | None = None
        while end is None or not end.passed(self._clock):
            try:
                for status in self._lines(end, read=read):
                    lost_since = None
                    yield status
                return
            except Lost as lost:
                now = self._clock.now()
                self._check_alive(lost)
                if lost_since is None:
                    lost_since = now
                    if on_lost is not None:
                        on_lost(f"the operator is gone ({lost}); waiting for it to come back")
                if end is None and now - lost_since >= max(ABSENCE, self._patience):
                    raise self._silent(lost) from None
                time.sleep(PAUSE if end is None else min(PAUSE, end.remaining(self._clock)))

    # --- one exchange -----------------------------------------------------------------------------

    def _refitted(self, path: str, wish: dict[str, Any]) -> Refitted:
        answer = self._retried(lambda: self._exchange("POST", path, wish))
        return Refitted(
            answer["generation"], answer["changed"], answer["message"], answer["target"]
        )

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = UnixConnection(self._layout.api, timeout=self._patience)
        try:
            answer = ask(connection, method, path, body)
            content = guarded(answer.read)
        finally:
            connection.close()
        return self._content(answer, content)

    def _lines(self, end: Deadline | None, *, read: bool) -> Iterator[Status]:
        """One connection's lines; ends with the time, raises :class:`Lost` with the connection."""

        def wait(longest: float) -> float:
            left = longest if end is None else min(longest, end.remaining(self._clock))
            return max(left, 0.001)

        connection = UnixConnection(self._layout.api, timeout=wait(self._patience))
        try:
            if read:
                # An operator that comes back reads everything, but it may be the one of before.
                answer = ask(connection, "POST", "/v1/read")
                self._content(answer, guarded(answer.read))
                connection.set_timeout(wait(self._patience))
            answer = ask(connection, "GET", "/v1/watch")
            if answer.status != 200:
                self._content(answer, guarded(answer.read))
            while True:
                connection.set_timeout(wait(self._silence))
                line = guarded(lambda: answer.readline(MAX_LINE))
                if not line.endswith(b"\n"):
                    raise Lost("it has closed the connection")
                yield self._content(answer, line)
                if end is not None and end.passed(self._clock):
                    return
        except Lost as lost:
            if lost.silent and end is not None and end.passed(self._clock):
                return
            raise
        finally:
            connection.close()

    def _content(self, answer: HTTPResponse, raw: bytes) -> Any:
        try:
            content = json.loads(raw)
            if answer.status == 200:
                return content
            message, code = str(content["error"]["message"]), str(content["error"]["code"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise SteersmanError(
                f"the operator of {self.directory} answered {answer.status} with what is not "
                "understood; do both run the same release?"
            ) from None
        if answer.status < 500:
            raise OperatorRefused(message, status=answer.status)
        raise FleetSilent(f"the operator of {self.directory} failed: {message} ({code})")

    # --- patience ---------------------------------------------------------------------------------

    def _retried(self, exchange: Callable[[], T]) -> T:
        end = Deadline.after(self._clock, self._patience)
        while True:
            try:
                return exchange()
            except Lost as lost:
                self._check_alive(lost)
                if end.passed(self._clock):
                    raise self._silent(lost) from None
                time.sleep(PAUSE)

    def _check_alive(self, lost: Lost) -> None:
        """Whether it makes sense to wait: a restarted operator is back in a second.

        :raises NoFleet: if no `steersman up` has the directory.
        """
        if lost.silent or is_held(self._layout.lock):
            return
        if not self.directory.is_dir():
            what = "is not a directory" if self.directory.exists() else "does not exist"
            raise NoFleet(
                f"{self.directory} {what}; name the directory of a fleet with -f or "
                f"${DIRECTORY_VARIABLE}"
            ) from None
        raise NoFleet(
            f"no fleet runs in {self.directory}; start one with `steersman up -f {self.directory}`"
        ) from None

    def _silent(self, lost: Lost) -> FleetSilent:
        return FleetSilent(
            f"a fleet runs in {self.directory}, but not its operator: {lost}; "
            f"see {self._layout.log('operator')}"
        )
