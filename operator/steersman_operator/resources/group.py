"""The API group of the resources, and the names that people give to them."""

import re
from typing import Annotated, Any

from pydantic import PlainValidator

from steersman.documents.problems import what
from steersman.documents.values import Kind

GROUP = "rollout.steersman.io"
API_VERSION = f"{GROUP}/v1alpha1"

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def dns_label(value: Any) -> str:
    """A name as Kubernetes takes it, so that a file can be moved into a cluster as it is.

    :raises ValueError: if it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be text, found {what(value)}; quote it to make it text")
    if not _LABEL.fullmatch(value):
        raise ValueError(
            "must be 1 to 63 lower-case letters, digits or `-`, with a letter or digit at both "
            f"ends, found {value[:80]!a}"
        )
    return value


ResourceName = Annotated[str, PlainValidator(dns_label), Kind("name (DNS label)")]
