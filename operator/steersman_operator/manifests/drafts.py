"""A file as it is to become, made and checked before anything is written."""

from collections.abc import Sequence

import msgspec

from steersman.errors import EditInvalid, ManifestUnusable
from steersman_operator.manifests.changes import Change
from steersman_operator.manifests.editing import edited
from steersman_operator.manifests.file import ManifestFile
from steersman_operator.manifests.looking import signature_of
from steersman_operator.manifests.replacing import changed, current, replace
from steersman_operator.resources import ReadFile, RolloutEngine


class Draft(msgspec.Struct, frozen=True):
    """A file as it is, and as it is to become."""

    file: ManifestFile
    before: bytes
    after: bytes
    found: ReadFile
    """What ``after`` has."""

    def put(self) -> None:
        """Write it, and take it for read.

        :raises ManifestChanged: if the file is not as it was any more.
        :raises ManifestNotWritable: if it cannot be replaced.
        """
        status = replace(self.file.path, self.after, expected=self.before)
        self.file.take(self.after, self.found, written=signature_of(status))


def opened(file: ManifestFile) -> bytes:
    """The content of a file, if it is as it was read, and good.

    :raises ManifestChanged: if it is not as it was read.
    :raises ManifestNotWritable: if it cannot be read.
    :raises ManifestUnusable: if it has errors.
    """
    content = current(file.path)
    if not file.is_read(content):
        raise changed(file.path)
    if file.problems:
        raise ManifestUnusable(
            f"{file.name} has errors, and its last good version is in force; mend it first: "
            f"{joined(file.problems)}"
        )
    return content


def drafted(
    file: ManifestFile,
    content: bytes,
    resource: RolloutEngine,
    *,
    changes: Sequence[Change],
    verb: str,
) -> Draft:
    """The file with changes of a resource in it.

    :raises EditImpossible: if the place cannot be changed alone.
    :raises EditInvalid: if the resource would contradict itself.
    """
    new = edited(file.name, content, document=resource.document, changes=changes)
    return Draft(file, content, new, checked(file, new, verb=verb))


def checked(file: ManifestFile, content: bytes, *, verb: str) -> ReadFile:
    """What ``content`` would be in the file.

    :raises EditInvalid: if it would be wrong.
    """
    found = file.parse(content)
    if found.problems:
        raise EditInvalid(f"{verb} is not possible: {joined(found.problems)}")
    return found


def joined(problems: Sequence[str]) -> str:
    """The first few of several sentences."""
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
