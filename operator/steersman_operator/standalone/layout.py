"""Where things lie below ``DIR/.steersman``."""

from pathlib import Path

STATE_DIRECTORY = ".steersman"

MAX_SOCKET_PATH = 100
"""Bytes; the system's limit for the path of a unix socket is 107."""


class Layout:
    """The files of one standalone fleet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.state = self.directory / STATE_DIRECTORY

    def make(self) -> None:
        """Create the state directory, readable by its owner alone: it holds sockets that take
        commands.
        """
        self.state.mkdir(mode=0o700, exist_ok=True)

    @property
    def lock(self) -> Path:
        """Held by the one `steersman up` of the directory."""
        return self.state / "lock"

    @property
    def store(self) -> Path:
        """What must survive the operator."""
        return self.state / "state.json"

    @property
    def proxies(self) -> Path:
        """Which proxy processes exist, by the supervisor's account."""
        return self.state / "proxies.json"

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
