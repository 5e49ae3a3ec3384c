"""Where things lie below ``DIR/.steersman``."""

import os
from pathlib import Path

from steersman.errors import SteersmanError

STATE_DIRECTORY = ".steersman"

MAX_SOCKET_PATH = 107
"""Bytes of the path of a unix socket that the system takes."""


class UnusableDirectory(SteersmanError):
    """The directory cannot hold a fleet."""

    code = "unusable_directory"
    remedy = "Name a directory that exists, is yours to write, and has a short path."


class Layout:
    """The files of one standalone fleet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.state = self.directory / STATE_DIRECTORY

    def make(self) -> None:
        """Create the state directory, readable by its owner alone: it holds sockets that take
        commands.

        :raises UnusableDirectory: if that cannot be done, or a socket's path would be too long.
        """
        if not self.directory.is_dir():
            what = "is not a directory" if self.directory.exists() else "does not exist"
            raise UnusableDirectory(f"{self.directory} {what}; make it, and put manifests into it")
        longest = max((self.api, self.control), key=lambda path: len(os.fsencode(path)))
        if len(os.fsencode(longest)) > MAX_SOCKET_PATH:
            raise UnusableDirectory(
                f"{longest} is {len(os.fsencode(longest))} bytes long, and the path of a socket can "
                f"have {MAX_SOCKET_PATH}; use a directory with a shorter path"
            )
        try:
            self.state.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UnusableDirectory(
                f"{self.state} cannot be made: {error.strerror}; the fleet's state is kept there"
            ) from None
        if not os.access(self.state, os.W_OK | os.X_OK):
            raise UnusableDirectory(f"{self.state} cannot be written; it must belong to you")

    @property
    def lock(self) -> Path:
        """Held by the one `steersman up` of the directory."""
        return self.state / "lock"

    @property
    def operator_lock(self) -> Path:
        """Held by the one operator process of the directory."""
        return self.state / "operator.lock"

    @property
    def store(self) -> Path:
        """What must survive the operator."""
        return self.state / "state.json"

    @property
    def proxies(self) -> Path:
        """Which proxy processes exist, by the supervisor's account."""
        return self.state / "proxies.json"

    @property
    def proxy_config(self) -> Path:
        """The configuration of the proxies, unless one is given."""
        return self.state / "proxy.yaml"

    @property
    def good_manifests(self) -> Path:
        """The last good version of each manifest, for an operator that starts while it is bad."""
        return self.state / "manifests"

    @property
    def manifest_memory(self) -> Path:
        """What is remembered of manifests: which came first, and what there was before."""
        return self.state / "manifests.json"

    @property
    def api(self) -> Path:
        """The operator's local API, a unix socket."""
        return self.state / "api.sock"

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.state / "control.sock"

    @property
    def control_endpoint(self) -> str:
        """The control socket as ZeroMQ names it."""
        return f"ipc://{self.control}"

    def log(self, process: str) -> Path:
        """The log of a process."""
        return self.state / f"{process}.log"
