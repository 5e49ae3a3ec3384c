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

`steersman pause`, `resume`, `sleep` and `wake` write `spec.state` or `spec.overrides` into the file
and change nothing else in it. Where that cannot be done safely, such as in a value that is shared by
an alias, they say what to write by hand.

The output of `kubectl get -o yaml` can be used as it is: `status`, and what the API server writes
into `metadata`, is not looked at.

Two pools cannot have the same engine (host and port) or model, and one pool is the default. **Whoever
has it keeps it** as long as it asks for it, also over a restart: no other file can take it away. Of
several that ask for what nobody has, the one that was first seen gets it, then the first by name. Both
say so in the condition `Conflict`, and the one that goes without is not `Ready`.

Nothing loads weights yet: `weightVersionRef`, `refitNonce`, `versionHistoryLimit` and `source` are
checked and have no effect. The ordinals of WeightVersions count already.
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
