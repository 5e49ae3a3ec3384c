"""The supervisor's account of proxy processes: the platform's word on who exists.

A process is written down before it is started and struck out after the system has confirmed its
end. So a process that may be serving is always listed, also if the supervisor dies in between.
"""

import time
from pathlib import Path

import msgspec

from steersman_operator.fleet.events import ProxyRef
from steersman_operator.shell import atomic_file


class ProxyProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process. A uid is never used twice."""

    uid: str
    boot: str = ""
    """What it says hello with; known to it and to those who may read the account."""
    pid: int | None = None
    """``None`` while it is being started."""
    metrics_url: str = ""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, and the number of starts so far."""

    starts: int = 0
    processes: tuple[ProxyProcess, ...] = ()

    @property
    def refs(self) -> tuple[ProxyRef, ...]:
        """As the core takes them."""
        return tuple(ProxyRef(uid=process.uid, boot=process.boot) for process in self.processes)


def read_account(path: Path) -> Account | None:
    """What is written; ``None`` if there is nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Account)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def starts_before(path: Path) -> int:
    """How many starts there may have been before, so that no uid is ever used twice.

    Of an account that cannot be read only the time is known, which goes on faster than anybody
    starts processes.
    """
    account = read_account(path)
    if account is not None:
        return account.starts
    return int(time.time()) if path.exists() else 0


def write_account(path: Path, account: Account) -> None:
    """Replace the account, so that it survives whatever happens next.

    :raises OSError: if it cannot be written.
    """
    atomic_file.replace(path, msgspec.json.encode(account))
