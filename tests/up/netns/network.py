"""A network on this machine with one link that can be cut so that neither end is told.

    far namespace ---- control link ---- router namespace ---- control link ---- this machine
          |                                                                           |
          +------------------------------ data link ----------------------------------+

The router drops what is cut: no FIN, no RST, no ICMP, as when a cable or a firewall in between
fails. Clients and engines are reached over the data link, which is never cut. Made with ``ip`` (the
Debian package iproute2), as root.

Everything is named for a slot, which a lock file keeps for one test at a time. Whoever gets the lock
finds at most what was left by somebody who was killed, and removes that first.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.up.netns.ways import Way

SLOTS = 16
"""How many tests may have such a network at a time."""

REFUSALS = re.compile(r"not permitted|Permission denied|Read-only file system")
"""How the kernel words that this user, or this container, may not make namespaces."""


class Refused(Exception):
    """The kernel does not let us; the text is what it said."""


class Namespaces:
    """One such network. Addresses are of 198.18.0.0/15, which is reserved for tests (RFC 2544)."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._far = f"steersman-test-{slot}-far"
        self._router = f"steersman-test-{slot}-router"
        self._links = (f"stm{slot}-near", f"stm{slot}-data")
        self._cut: list[str] = []
        self.operator = self._address(1)
        """Where the operator's control socket listens."""
        self.near = self.engines = self._address(9)
        """Where engines and the proxy on this side listen; both sides reach it."""
        self.far = self._address(10)
        """Where the proxy on the other side listens; this side reaches it."""
        self.addresses = {"near": self._address(1), "far": self._address(6)}
        """From where each proxy's control connection comes."""

    def _address(self, last: int) -> str:
        return f"198.18.{self._slot}.{last}"

    # --- life -------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make it.

        :raises Refused: if the kernel does not let us.
        """
        near, data = self._links
        _ip(
            f"netns add {self._far}",
            f"netns add {self._router}",
            f"link add {near} type veth peer name near netns {self._router}",
            f"link add {data} type veth peer name data netns {self._far}",
            f"address add {self._address(1)}/30 dev {near}",
            f"address add {self._address(9)}/30 dev {data}",
            f"link set {near} up",
            f"link set {data} up",
            f"route add {self._address(4)}/30 via {self._address(2)}",
        )
        _ip(
            f"link add far type veth peer name control netns {self._far}",
            f"address add {self._address(2)}/30 dev near",
            f"address add {self._address(5)}/30 dev far",
            "link set near up",
            "link set far up",
            inside=self._router,
        )
        _ip(
            "link set lo up",
            f"address add {self._address(6)}/30 dev control",
            f"address add {self._address(10)}/30 dev data",
            "link set control up",
            "link set data up",
            f"route add {self._address(0)}/30 via {self._address(5)}",
            inside=self._far,
        )
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run(["ip", "netns", "exec", self._router, "sh", "-c", forward])

    def remove(self) -> None:
        """Remove it, and end whatever still runs in it."""
        there = {line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line}
        for name in {self._far, self._router} & there:
            for pid in _run(["ip", "netns", "pids", name]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _run(["ip", "netns", "del", name])
        # Their other ends go with them, and the routes over them, but not at once.
        for name in self._links:
            if Path("/sys/class/net", name).exists():
                _run(["ip", "link", "del", name], may_fail=True)

    # --- what it is for ---------------------------------------------------------------------------

    async def open_control(self, port: int) -> dict[str, str]:
        """The control addresses by proxy; ``port`` is the operator's."""
        return dict.fromkeys(("near", "far"), f"tcp://{self.operator}:{port}")

    def command(self, proxy: str, command: Sequence[str]) -> list[str]:
        """A command that is run where a proxy runs."""
        return [*(("ip", "netns", "exec", self._far) if proxy == "far" else ()), *command]

    def cut(self, way: Way) -> None:
        """Cut the control link from now on."""
        targets = {Way.TO_OPERATOR: [1], Way.TO_PROXY: [6], Way.BOTH: [1, 6]}[way]
        self._cut = [self._address(last) for last in targets]
        _ip(*(f"route add blackhole {one}/32" for one in self._cut), inside=self._router)

    def heal(self) -> None:
        """Let everything through again. What was sent meanwhile is lost, and sent again by TCP."""
        _ip(*(f"route del blackhole {one}/32" for one in self._cut), inside=self._router)
        self._cut = []


@contextlib.contextmanager
def namespaces() -> Iterator[Namespaces]:
    """Such a network, removed at the end.

    :raises Refused: if the kernel does not let us.
    """
    assert shutil.which("ip"), "`ip` is missing; install the Debian package iproute2"
    with _slot() as slot:
        network = Namespaces(slot)
        try:
            network.remove()  # what somebody left who was killed
            network.make()
            yield network
        finally:
            network.remove()


@contextlib.contextmanager
def _slot() -> Iterator[int]:
    """A slot that nobody else has; the system lets go of it when this process ends."""
    for slot in range(SLOTS):
        path = Path(tempfile.gettempdir(), f"steersman-test-netns-{os.getuid()}-{slot}.lock")
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield slot
            return
    raise AssertionError(f"{SLOTS} tests have such a network already")


def _ip(*lines: str, inside: str | None = None) -> None:
    """Several commands of ``ip`` in one process; the first that fails ends them."""
    namespace = () if inside is None else ("-n", inside)
    _run(["ip", *namespace, "-batch", "-"], said="\n".join(lines))


def _run(command: Sequence[str], *, said: str = "", may_fail: bool = False) -> str:
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        words = f"{' '.join(command)}: {done.stderr.strip()}"
        raise Refused(words) if REFUSALS.search(done.stderr) else AssertionError(words)
    return done.stdout
