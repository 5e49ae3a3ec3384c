"""The proxies while they run: started together, asked until they answer, warmed, killed."""

import http.client
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.proxies.loads import WARM_UP
from tests.bench.proxies.pair import Engines, LoadFailedError, Pair
from tests.bench.proxies.peers import DIRECT, KEY, Found, Place, Subject
from tests.bench.proxies.processes import Cores, Group, free_ports

START = 60.0
"""Seconds that a proxy may take until it serves."""
REST = 1.0
"""Seconds between the warm-up and the look at the idle memory."""


class NotServingError(Exception):
    """A proxy does not serve, or not what it must; says what it said."""


@dataclass(frozen=True)
class Running:
    """A proxy that serves."""

    subject: Subject
    port: int
    group: Group | None
    """Nothing, for the direct way to the engines."""

    def pids(self) -> list[int]:
        return self.group.pids() if self.group else []

    def rss_mb(self) -> float:
        return self.group.rss() / 1e6 if self.group else 0.0


@dataclass(frozen=True)
class Fleet:
    """All that run at a time, and why some do not."""

    engines: Engines
    running: Mapping[str, Running]
    failed: Mapping[str, str]
    idle_mb: Mapping[str, float]
    """Resident memory after the warm-up, by name."""


@contextmanager
def fleet(
    subjects: Sequence[tuple[Subject, Found]], pair: Pair, cores: Cores, *, rest: float = REST
) -> Iterator[Fleet]:
    """Two engines, and a proxy before them for each subject, until the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-proxies-")))
        engines = stack.enter_context(pair.engines(2))
        ports = iter(free_ports(2 * len(subjects)))
        started: list[tuple[Subject, Place, Group | None]] = []
        for number, (subject, found) in enumerate(subjects):
            own = folder / str(number)
            own.mkdir()
            place = Place(
                folder=own,
                port=engines.ports[0] if subject.name == DIRECT else next(ports),
                admin_port=next(ports),
                engines=engines.ports,
                model=engines.model,
                weight_version=engines.weight_version,
            )
            group = None
            if command := subject.command(found.program, place):
                group = Group(command, core=cores.proxy, log=own / "log", folder=own)
                stack.callback(group.kill)
            started.append((subject, place, group))
        running, failed = {}, {}
        for subject, place, group in started:
            try:
                _wait_until_it_serves(subject, place, group)
                one = Running(subject, place.port, group)
                pair.load(WARM_UP, place.port, key=KEY, proxy=one.pids())
                running[subject.name] = one
            except (NotServingError, LoadFailedError) as why:
                failed[subject.name] = str(why)
        time.sleep(rest)
        idle = {name: one.rss_mb() for name, one in running.items()}
        yield Fleet(engines, running, failed, idle)


def _wait_until_it_serves(subject: Subject, place: Place, group: Group | None) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            problem = _ask(subject, place)
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            return
        if group is not None and group.ended:
            raise NotServingError(f"it ended: {group.last_words()}")
        if time.monotonic() > deadline:
            words = group.last_words() if group else ""
            raise NotServingError(f"{problem} after {START:g} s; {words}")
        time.sleep(0.05)


def _ask(subject: Subject, place: Place) -> str | None:
    """One request like those of the loads; what is wrong with its answer, if anything."""
    content = "answer=1024 chunks=0 interval=0;"
    body = {"model": place.model, "messages": [{"role": "user", "content": content}]}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200 or len(text) != 1024:
            return f"status {answer.status}, {len(text)} bytes instead of 1024: {text[:300]!r}"
        for name, value in subject.requires.items():
            if answer.headers.get(name) != value:
                return f"{name} is {answer.headers.get(name)!r} instead of {value!r}"
        return None
    finally:
        connection.close()
