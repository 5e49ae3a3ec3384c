"""New weights for a pool: which WeightVersion they are, and what of the manifest changes for them."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from steersman.errors import EditError, EditInvalid, InvalidVersion
from steersman.versions import UNVERSIONED, parse_version
from steersman_operator.manifests.changes import Change, SetValue
from steersman_operator.manifests.made import NewVersion, free_name, reference_of
from steersman_operator.manifests.memory import References
from steersman_operator.resources import RolloutEngine, State, WeightVersion

REFERENCE = ("weightVersionRef", "name")
NONCE = ("refitNonce",)
PAUSED = ("rollout", "paused")


class VersionTaken(EditError):
    """There are weights of that version already, from another place or with another checksum."""

    code = "version_taken"
    status = 409
    remedy = (
        "Give other weights a version of their own. To have the weights that are there loaded, leave "
        "--path and --checksum out."
    )


class NoTarget(EditError):
    """Nothing says which weights the pool is to have, so they cannot be loaded once more."""

    code = "no_target"
    status = 409
    remedy = "Name the weights: `steersman refit POOL --version V`."


class NothingToUndo(EditError):
    """Nothing is known of weights that the pool was to have before."""

    code = "nothing_to_undo"
    status = 409
    remedy = "Name the weights: `steersman refit POOL --version V`, or `rollout undo --to V`."


class TargetChanged(EditError):
    """The weights that were to be taken back are not what the pool is to have any more."""

    code = "target_changed"
    status = 409
    remedy = "See `steersman rollout status POOL`, and ask again."


class RefitWish(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that people ask for."""

    version: str | None = None
    """``None`` is the version that the pool is to have already."""
    path: str | None = None
    checksum: str | None = None
    nonce: str | None = None
    """Has the weights loaded also where they are already."""


class RolloutVerb(StrEnum):
    """What people do with a rollout that is on its way."""

    PAUSE = "pause"
    RESUME = "resume"
    UNDO = "undo"


class RefitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for new weights."""

    name: str
    """The WeightVersion that the pool is to have."""
    new: NewVersion | None = None
    """The same, if it has to be made."""
    changes: tuple[Change, ...]
    """Of the RolloutEngine; none if everything is as it is wanted."""
    message: str


def plan_refit(
    resource: RolloutEngine, *, wish: RefitWish, versions: Sequence[WeightVersion]
) -> RefitPlan:
    """What brings the weights of the wish to a pool. ``versions`` are all that there are.

    :raises VersionTaken: if the version means other weights already.
    :raises NoTarget: if no version is named, and the pool has none.
    :raises EditInvalid: if the version is not one.
    """
    found = _wanted(resource, wish, versions)
    name = found.name
    changes: list[Change] = []
    if name != reference_of(resource):
        changes.append(SetValue(REFERENCE, name))
    if wish.nonce is not None and wish.nonce != resource.spec.refit_nonce:
        changes.append(SetValue(NONCE, wish.nonce))
    shown = _shown(found)
    if not changes:
        message = f"{resource.name} is to have {shown} already"
        if wish.nonce is None:
            message += "; `--again` has it loaded once more"
    elif name == reference_of(resource):
        message = f"{resource.name} is to load {shown} once more"
    else:
        message = f"{resource.name} is to have {shown} now"
    return RefitPlan(
        name=name,
        new=found if isinstance(found, NewVersion) else None,
        changes=tuple(changes),
        message=message + _but(resource, changes),
    )


def plan_rollout(
    resource: RolloutEngine,
    *,
    verb: RolloutVerb,
    versions: Sequence[WeightVersion],
    references: References | None,
    to: str | None = None,
    since: str | None = None,
) -> RefitPlan:
    """What pauses, resumes or undoes a rollout.

    ``references`` is what the pool was to have. An undo goes to the version ``to``, by default the one
    before, and only if the pool is still to have the WeightVersion ``since``, where that is given.

    :raises NothingToUndo: if nothing is known of weights before, or of the version ``to``.
    :raises TargetChanged: if the pool is to have something else than ``since``.
    """
    if verb is RolloutVerb.UNDO:
        return _plan_undo(resource, versions, references, to=to, since=since)
    paused = verb is RolloutVerb.PAUSE
    word = "paused" if paused else "not paused"
    if resource.spec.rollout.paused is paused:
        changes: tuple[Change, ...] = ()
        message = f"the rollout of {resource.name} is {word} already"
    else:
        changes = (SetValue(PAUSED, paused),)
        message = f"the rollout of {resource.name} is {word} now"
        message += "; an engine that has begun is finished" if paused else ""
    return RefitPlan(name=reference_of(resource) or "", changes=changes, message=message)


def _wanted(
    resource: RolloutEngine, wish: RefitWish, versions: Sequence[WeightVersion]
) -> WeightVersion | NewVersion:
    """The weights that are asked for: those that there are, else new ones."""
    model = resource.spec.model
    if wish.version is None:
        if wish.path is not None or wish.checksum is not None:
            raise EditInvalid("a path or a checksum is of a version; name it, too")
        asked = (reference_of(resource), model)
        there = [one for one in versions if (one.name, one.spec.model) == asked]
        if not there:
            raise NoTarget(f"{resource.name} has no version that could be loaded once more")
        return there[0]
    version = _checked(wish.version)
    same = [one for one in versions if (one.spec.model, one.spec.version) == (model, version)]
    if not same:
        name = free_name(f"{resource.name}-{version}", {one.name for one in versions})
        return NewVersion(
            name=name,
            model=model,
            version=version,
            path=wish.path,
            checksum=wish.checksum,
            ordinal=_next_ordinal(model, versions),
        )
    # Of several the older counts, as everywhere; but not if another is meant, or there already.
    now = reference_of(resource)
    same.sort(key=lambda one: (one.name != now, one.created or 0.0, one.name))
    found = next((one for one in same if _is_meant(one, wish)), None)
    if found is None:
        taken = same[0]
        checksum = ""
        if wish.checksum is not None:
            checksum = f", checksum {taken.spec.checksum or 'not given'}"
        raise VersionTaken(
            f"{version} of {model!a} are other weights already: {taken.name} ({taken.place}) has "
            f"{_source(_path(taken))}{checksum}"
        )
    return found


def _next_ordinal(model: str, versions: Sequence[WeightVersion]) -> int | None:
    """The rank of new weights; none where versions order themselves.

    Where one has a rank, those without are older than all others, and these are to be the newest.
    """
    ranks = [one.spec.ordinal for one in versions if one.spec.model == model]
    known = [rank for rank in ranks if rank is not None]
    return max(known) + 1 if known else None


def _is_meant(version: WeightVersion, wish: RefitWish) -> bool:
    path = wish.path is None or wish.path == _path(version)
    return path and (wish.checksum is None or wish.checksum == version.spec.checksum)


def _checked(text: str) -> str:
    try:
        version = parse_version(text)
    except InvalidVersion as error:
        raise EditInvalid(str(error)) from None
    if version == UNVERSIONED:
        raise EditInvalid(
            f"a version cannot be `{UNVERSIONED}`, which engines say before they have one"
        )
    return version


def _plan_undo(
    resource: RolloutEngine,
    versions: Sequence[WeightVersion],
    references: References | None,
    *,
    to: str | None,
    since: str | None,
) -> RefitPlan:
    now = reference_of(resource)
    if since is not None and since != now:
        raise TargetChanged(
            f"{resource.name} is to have {now or 'no weights of a name'} now, and not {since} any more"
        )
    known = {one.name: one for one in versions if one.spec.model == resource.spec.model}
    names = () if references is None else (references.now, *references.before)
    before = [known[name] for name in names if name in known and name != now]
    if to is not None:
        # Also one that is not remembered, as long as it is there.
        others = [one for one in known.values() if one.name != now]
        before = [one for one in (*before, *others) if to in (one.spec.version, one.name)]
    if not before:
        what = "no weights before" if to is None else f"no other weights called {to[:80]!a}"
        raise NothingToUndo(f"of {resource.name} {what} are known")
    found = before[0]
    changes: tuple[Change, ...] = (SetValue(REFERENCE, found.name),)
    message = f"{resource.name} is to have {_shown(found)} again{_but(resource, changes)}"
    return RefitPlan(name=found.name, changes=changes, message=message)


def _but(resource: RolloutEngine, changes: Sequence[Change]) -> str:
    """What keeps it from beginning at once."""
    if not changes:
        return ""
    if resource.spec.state is State.ASLEEP:
        return "; it is asleep, and gets them when it is woken"
    if resource.spec.rollout.paused:
        return f"; its rollout is paused, `steersman rollout resume {resource.name}` begins it"
    return ""


def _path(version: WeightVersion) -> str | None:
    disk = version.spec.source.disk
    return None if disk is None else disk.path


def _shown(version: WeightVersion | NewVersion) -> str:
    """A version, and where its weights come from."""
    if isinstance(version, NewVersion):
        return f"{version.version} ({_source(version.path)})"
    return f"{version.spec.version} ({_source(_path(version))})"


def _source(path: str | None) -> str:
    return "External" if path is None else f"Disk {path}"
