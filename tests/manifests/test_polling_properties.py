"""Any sequence of writes, removals and looks, against a model of what is in force."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from steersman.errors import EditRefused, ManifestChanged, ManifestUnusable, RequestError
from steersman_operator.manifests import Edited, ManifestDirectory, Verb
from tests.manifests.support import MemoryLedger, write
from tests.resources.support import engine_text

FILES = ["a.yaml", "b.yml", "c.json.yaml"]
POOLS = ["p", "q"]
STATES = ["Active", "Paused", "Asleep"]
BAD = ["kind: [", "kind: RolloutEngine\n", "\ttab", "a: 1\n---\n- b\n", "\x00"]

Content = dict[str, str] | None
"""The states of the pools of a file; ``None`` is a bad file."""


class Polling(RuleBasedStateMachine):
    """``disk`` is what is there, ``force`` what counts of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.ledger = MemoryLedger()
        self.directory = ManifestDirectory(self.path, ledger=self.ledger)
        self.disk: dict[str, tuple[int, Content]] = {}
        self.seen: dict[str, int] = {}
        self.force: dict[str, dict[str, str]] = {}
        self.bad: set[str] = set()
        self.read: dict[str, int] = {}
        self.holders: dict[str, str] = {}
        self.writes = 0
        self.polled = False

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    @initialize(good=st.dictionaries(st.sampled_from(FILES), st.sampled_from(STATES)))
    def begin(self, good: dict[str, str]) -> None:
        for name, state in good.items():
            self.put(name, {POOLS[FILES.index(name) % 2]: state})

    @rule(
        name=st.sampled_from(FILES),
        content=st.dictionaries(st.sampled_from(POOLS), st.sampled_from(STATES)),
        comment=st.sampled_from(["", "# words\n"]),
    )
    def put(self, name: str, content: dict[str, str], comment: str = "") -> None:
        texts = [engine_text(f"state: {state}", name=pool) for pool, state in content.items()]
        write(self.path / name, comment + "---\n".join(texts))
        self.note(name, content)

    @rule(name=st.sampled_from(FILES), text=st.sampled_from(BAD))
    def spoil(self, name: str, text: str) -> None:
        write(self.path / name, text)
        self.note(name, None)

    @rule(name=st.sampled_from(FILES), text=st.sampled_from(["x: [", engine_text()]))
    def write_beside(self, name: str, text: str) -> None:
        write(self.path / f".{name}.swp", text)
        write(self.path / f"{name}~", text)

    @rule(name=st.sampled_from(FILES))
    def remove(self, name: str) -> None:
        if name in self.disk:
            (self.path / name).unlink()
            del self.disk[name]

    @rule(old=st.sampled_from(FILES), new=st.sampled_from(FILES))
    def rename(self, old: str, new: str) -> None:
        if old in self.disk and old != new:
            (self.path / old).rename(self.path / new)
            self.note(new, self.disk.pop(old)[1])

    @rule()
    def poll(self) -> None:
        before = self.directory.manifests
        for name in FILES:
            version, content = self.disk.get(name, (0, {}))
            if self.polled and self.seen.get(name, 0) != version:
                continue
            self.read[name] = version
            emptied = name in self.disk and not content and self.force.get(name)
            if content is None or emptied:
                self.bad.add(name)
            else:
                self.bad.discard(name)
                self.force[name] = content
        self.polled = True
        self.seen = {name: version for name, (version, _) in self.disk.items()}
        self.settle_holders()
        assert self.directory.poll() is (self.directory.manifests != before)

    @rule(pool=st.sampled_from(POOLS), verb=st.sampled_from(Verb))
    def edit(self, pool: str, verb: Verb) -> None:
        file = self.holders.get(pool)
        if file is None or file not in self.disk:
            return
        version, content = self.disk[file]
        text = (self.path / file).read_bytes()
        found = self.outcome(pool, verb)
        if isinstance(found, RequestError):
            assert (self.path / file).read_bytes() == text
            # The bytes count, not the time: what was written again as it was may be edited.
            if isinstance(found, ManifestChanged):
                assert version != self.read.get(file)
            elif isinstance(found, ManifestUnusable):
                assert file in self.bad
            else:
                assert isinstance(found, EditRefused)
            return
        assert content is not None
        assert file not in self.bad
        if found.changed:
            self.note(file, content | {pool: verb.state.value})
            self.force[file] = content | {pool: verb.state.value}
            self.seen[file] = self.read[file] = self.writes
        else:
            assert self.force[file][pool] == verb.state.value

    @invariant()
    def only_what_is_good_and_settled_counts(self) -> None:
        manifests = self.directory.manifests
        assert {
            found.name: (found.file, found.spec.state.value) for found in manifests.engines
        } == {pool: (file, self.force[file][pool]) for pool, file in self.holders.items()}
        twice = {
            file
            for file, content in self.force.items()
            if any(self.holders[pool] != file for pool in content)
        }
        assert set(manifests.by_file) == self.bad | twice
        assert {found.name: found.generation for found in manifests.engines} == {
            name: self.ledger.generations[f"RolloutEngine/{name}"] for name in self.holders
        }

    def outcome(self, pool: str, verb: Verb) -> Edited | RequestError:
        try:
            return self.directory.edit(pool, verb=verb)
        except RequestError as error:
            return error

    def note(self, name: str, content: Content) -> None:
        self.writes += 1
        self.disk[name] = (self.writes, content)

    def settle_holders(self) -> None:
        for pool in POOLS:
            files = [file for file in FILES if pool in self.force.get(file, {})]
            if not files:
                self.holders.pop(pool, None)
            elif self.holders.get(pool) not in files:
                self.holders[pool] = files[0]


Polling.TestCase.settings = settings(Polling.TestCase.settings, stateful_step_count=30)
TestPolling = Polling.TestCase
