"""A directory of manifests: read again when it changes, and edited when people ask for a state."""

from pathlib import Path

import msgspec

from steersman.errors import EditInvalid, ManifestUnusable
from steersman_operator.manifests.editing import edited
from steersman_operator.manifests.file import ManifestFile
from steersman_operator.manifests.looking import manifest_names, signature_of
from steersman_operator.manifests.manifests import FileContent, Ledger, Manifests, Merger
from steersman_operator.manifests.replacing import changed, current, replace
from steersman_operator.manifests.saved import SavedManifests
from steersman_operator.manifests.verbs import Verb, plan, unknown
from steersman_operator.resources import ROLLOUT_ENGINE, RolloutEngine


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a wish."""

    generation: int
    """The generation of the resource that holds it."""
    changed: bool
    """Whether the file had to be changed."""
    message: str


class ManifestDirectory:
    """The files of one directory.

    Everything in here blocks and is called from one thread at a time; :attr:`manifests` may be read
    from any. With ``good``, a directory of its own, the last good version of each file survives a
    restart.
    """

    def __init__(self, directory: Path, *, ledger: Ledger, good: Path | None = None) -> None:
        self.manifests = Manifests()
        self._directory = directory
        self._saved = SavedManifests(good)
        self._merger = Merger(ledger)
        self._files: dict[str, ManifestFile] = {}
        self._problem: str | None = None
        self._polled = False
        self._unmerged = False

    def poll(self) -> bool:
        """Look at the directory, and read what changed; whether :attr:`manifests` did.

        A look at files that did not change reads none of them. A change counts once it looks the
        same twice, except at the first look.

        :raises SteersmanError: of the ledger, if it cannot be written; what was read is kept, and
            is put into :attr:`manifests` by the next call.
        """
        first = not self._polled
        try:
            names = manifest_names(self._directory)
        except OSError as error:
            self._note(f"{self._directory}: cannot be listed: {error.strerror}")
            return self._merge()
        self._note(None)
        self._polled = True
        if first:
            self._forget_saved(names)
        for name in sorted(names | self._files.keys()):
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = ManifestFile(self._directory / name, saved=self._saved)
            if file.poll(listed=name in names, first=first):
                self._unmerged = True
            if file.gone:
                del self._files[name]
        return self._merge()

    def edit(self, name: str, *, verb: Verb, engine: str | None = None) -> Edited:
        """Carry out a verb on a RolloutEngine or on one of its engines, in its file.

        :raises ResourceNotFound: if there is no such resource or engine.
        :raises EditRefused: if the verb does not fit what is wanted.
        :raises ManifestChanged: if the file is not as it was read.
        :raises ManifestNotWritable: if the file cannot be read or replaced.
        :raises ManifestUnusable: if the file has errors.
        :raises EditImpossible: if the place cannot be changed alone.
        :raises EditInvalid: if the resource would contradict itself.
        """
        resource = self._find(name)
        file = self._files[resource.file]
        content = current(file.path)
        if not file.is_read(content):
            raise changed(file.path)
        if file.problems:
            raise ManifestUnusable(
                f"{file.name} has errors, and its last good version is in force; mend it first: "
                f"{_joined(file.problems)}"
            )
        planned = plan(resource, verb=verb, engine=engine)
        if planned.change is None:
            return Edited(generation=resource.generation, changed=False, message=planned.message)
        new = edited(file.name, content, document=resource.document, change=planned.change)
        found = file.parse(new)
        if found.problems:
            raise EditInvalid(f"{verb} is not possible: {_joined(found.problems)}")
        status = replace(file.path, new, expected=content)
        file.take(new, found, written=signature_of(status))
        self._unmerged = True
        self._merge()
        return Edited(generation=self._find(name).generation, changed=True, message=planned.message)

    def _find(self, name: str) -> RolloutEngine:
        engines = {resource.name: resource for resource in self.manifests.engines}
        if name not in engines:
            raise unknown(ROLLOUT_ENGINE, name, engines)
        return engines[name]

    def _note(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            self._unmerged = True

    def _forget_saved(self, names: set[str]) -> None:
        """A file that was removed while nobody looked must not come back by its copy."""
        for name in self._saved.names() - names:
            self._saved.forget(name)

    def _merge(self) -> bool:
        if not self._unmerged:
            return False
        before = self.manifests
        self.manifests = self._merger.merge(
            (
                FileContent(name, file.resources, file.problems)
                for name, file in sorted(self._files.items())
            ),
            of_directory=() if self._problem is None else (self._problem,),
        )
        self._unmerged = False
        return self.manifests != before


def _joined(problems: tuple[str, ...]) -> str:
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
