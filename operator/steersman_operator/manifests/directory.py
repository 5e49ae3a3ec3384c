"""A directory of manifests: read again when it changes, and edited when people ask for something."""

import logging
from pathlib import Path

import msgspec

from steersman.errors import ManifestNotWritable, RequestError
from steersman_operator.fleet.spec import Weights
from steersman_operator.manifests.drafts import checked, drafted, opened
from steersman_operator.manifests.file import ManifestFile
from steersman_operator.manifests.looking import manifest_names, signature_of
from steersman_operator.manifests.made import NewVersion, file_of, reference_of, surplus
from steersman_operator.manifests.manifests import FileContent, Ledger, Manifests, Merger
from steersman_operator.manifests.memory import ManifestMemory
from steersman_operator.manifests.refits import (
    RefitPlan,
    RefitWish,
    RolloutVerb,
    plan_refit,
    plan_rollout,
)
from steersman_operator.manifests.replacing import create, current
from steersman_operator.manifests.saved import SavedManifests
from steersman_operator.manifests.verbs import Verb, plan, unknown
from steersman_operator.resources import (
    ROLLOUT_ENGINE,
    RolloutEngine,
    WeightVersion,
    weights_of,
)

_log = logging.getLogger("steersman.manifests")


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a wish."""

    generation: int
    """The generation of the resource that holds it."""
    changed: bool
    """Whether the file had to be changed."""
    message: str
    target: Weights | None = None
    """Of a refit: the weights that the pool is to have from now on, if their name means any."""


class ManifestDirectory:
    """The files of one directory.

    Everything in here blocks and is called from one thread at a time; :attr:`manifests` may be read
    from any. With ``good``, a directory of its own, the last good version of each file survives a
    restart; with a ``memory`` of its own what came first does.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ledger: Ledger,
        good: Path | None = None,
        memory: ManifestMemory | None = None,
    ) -> None:
        self.manifests = Manifests()
        self._directory = directory
        self._saved = SavedManifests(good)
        self._memory = memory or ManifestMemory()
        self._merger = Merger(ledger, self._memory)
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
        content = opened(file)
        planned = plan(resource, verb=verb, engine=engine)
        if planned.change is None:
            return Edited(generation=resource.generation, changed=False, message=planned.message)
        drafted(file, content, resource, changes=[planned.change], verb=verb).put()
        self._unmerged = True
        self._merge()
        return Edited(generation=self._find(name).generation, changed=True, message=planned.message)

    def refit(self, name: str, wish: RefitWish) -> Edited:
        """Have a RolloutEngine ask for other weights, or for the same once more.

        Weights of which there is no WeightVersion get one, in a file of its own and before anything
        refers to it: whatever is interrupted, every file makes sense. WeightVersions that were made so
        and that nobody needs any more are removed.

        :raises VersionTaken: if the version means other weights already.
        :raises NoTarget: if no version is named, and the pool has none.
        :raises EditError: as :meth:`edit`.
        """
        resource = self._find(name)
        file = self._files[resource.file]
        content = opened(file)
        planned = plan_refit(resource, wish=wish, versions=self.manifests.versions)
        return self._carried_out(resource, planned, file, content, verb="refit")

    def rollout(
        self, name: str, *, verb: RolloutVerb, to: str | None = None, since: str | None = None
    ) -> Edited:
        """Pause, resume or undo the rollout of a RolloutEngine; see
        :func:`~steersman_operator.manifests.refits.plan_rollout`.

        :raises EditError: if it cannot be done; says why.
        """
        resource = self._find(name)
        file = self._files[resource.file]
        content = opened(file)
        planned = plan_rollout(
            resource,
            verb=verb,
            versions=self.manifests.versions,
            references=self._memory.references.get(name),
            to=to,
            since=since,
        )
        return self._carried_out(resource, planned, file, content, verb=f"rollout {verb}")

    # --- editing ----------------------------------------------------------------------------------

    def _carried_out(
        self,
        resource: RolloutEngine,
        planned: RefitPlan,
        file: ManifestFile,
        content: bytes,
        *,
        verb: str,
    ) -> Edited:
        if planned.changes:
            # Whatever may be wrong with it is found before the first of two files is written.
            draft = drafted(file, content, resource, changes=planned.changes, verb=verb)
            made = None if planned.new is None else self._make(planned.new, like=file, verb=verb)
            try:
                draft.put()
            except RequestError:
                if made is not None:
                    self._remove(made)
                raise
            self._unmerged = True
            self._merge()
            self._collect(resource.spec.model)
        now = self._find(resource.name)
        return Edited(
            generation=now.generation,
            changed=bool(planned.changes),
            message=planned.message,
            target=self._target(now),
        )

    def _make(self, new: NewVersion, *, like: ManifestFile, verb: str) -> ManifestFile:
        file = ManifestFile(self._directory / new.file, saved=self._saved)
        content = new.text.encode()
        found = checked(file, content, verb=verb)
        status = create(file.path, content, like=like.path)
        # Whatever was called so before is gone, or the name would not have been free.
        self._memory.forget_weights([new.name])
        file.take(content, found, written=signature_of(status))
        self._files[file.name] = file
        self._unmerged = True
        return file

    def _collect(self, model: str) -> None:
        """Remove WeightVersions of a model that we have made and that nobody needs."""
        for version in surplus(
            model,
            engines=self.manifests.engines,
            versions=self.manifests.versions,
            references=self._memory.references.values(),
        ):
            file = self._files[version.file]
            if file.name == file_of(version.name) and self._is_alone(version, file):
                self._remove(file)
        self._merge()

    def _is_alone(self, version: WeightVersion, file: ManifestFile) -> bool:
        """Whether a file is as we have made it: nothing else would be lost with it."""
        try:
            content = current(file.path)
        except ManifestNotWritable:
            return False
        (first, *others) = file.resources
        return file.is_read(content) and not others and first.name == version.name

    def _remove(self, file: ManifestFile) -> None:
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", file.path, error.strerror)
            return
        file.poll(listed=False, first=True)
        self._files.pop(file.name, None)
        self._unmerged = True

    def _target(self, resource: RolloutEngine) -> Weights | None:
        asked = (reference_of(resource), resource.spec.model)
        for version in self.manifests.versions:
            if (version.name, version.spec.model) == asked:
                return weights_of(version, nonce=resource.spec.refit_nonce or "")
        return None

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
