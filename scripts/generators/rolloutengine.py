"""``docs/configuration/rolloutengine.md``: the keys of the resources, from their models."""

from collections.abc import Mapping

from scripts.generators.configuration import DOCS, sections
from steersman_operator.resources import API_VERSION, SCHEMAS

INTRODUCTION = f"""\
# RolloutEngine and WeightVersion

The resources of Steersman, `apiVersion: {API_VERSION}`.

`steersman up -f DIR` reads them from the `.yaml`, `.yml` and `.json` files of a directory (not of
those below it; names that begin with a dot are left out). A file may have several, divided by `---`.

A file is read again when it changes, and a change counts once the file has stayed as it is for a
moment. **A bad file keeps its last good version in force**, also over a restart; the other files go
on. `steersman get` shows what is wrong, with file and line. Of two resources of one kind and name
the one that was there first counts. A file that is removed takes its resources with it: their
engines are no longer managed, and are left in the state that they are in. A file that is there but
empty, or has only comments, does not: that is a save that failed more often than a wish.

`steersman pause`, `resume`, `sleep` and `wake` write `spec.state` or `spec.overrides` into the file,
`steersman refit` and `rollout` what is said below, and change nothing else in it. Where that cannot be
done safely, such as in a value that is shared by an alias, they say what to write by hand.

The output of `kubectl get -o yaml` can be used as it is: `status`, and what the API server writes
into `metadata`, is not looked at.

Two pools cannot have the same engine (host and port) or model, and one pool is the default. **Whoever
has it keeps it** as long as it asks for it, also over a restart: no other file can take it away. Of
several that ask for what nobody has, the one that was first seen gets it, then the first by name. Both
say so in the condition `Conflict`, and the one that goes without is not `Ready`.

**The spec of a WeightVersion cannot be changed**, or two engines with one version could have different
weights. The one that was read first stays in force until the WeightVersion is removed; `get` says which
key was changed. Other weights get a WeightVersion and a version of their own.

`weightVersionRef` names a WeightVersion of the same model. If there is none, or if it is of another model,
`ManifestInvalid` and `get` say so, with line and remedy, and the weights of before stay what is wanted,
also over a restart. How weights get into the engines is in [refit.md](../refit.md).
"""

ROUTING = (
    "The keys of [`routing`](proxy.md#routing) in the configuration of the proxy, with the same "
    "meaning and the same defaults."
)


def pages() -> Mapping[str, str]:
    """The one page."""
    parts = [INTRODUCTION]
    for kind, schema in SCHEMAS.items():
        text = "\n".join(sections(schema, routing=ROUTING))
        parts.append(text.replace("## ", "### ").replace("### Top level", f"## {kind}", 1))
    example = (DOCS / "examples" / "rolloutengine.yaml").read_text()
    parts.append(
        "## Example\n\n[`rolloutengine.yaml`](../examples/rolloutengine.yaml); shorter ones are in "
        f"[`examples/up`](../examples/up).\n\n```yaml\n{example}```\n"
    )
    return {"configuration/rolloutengine.md": "\n".join(parts)}
