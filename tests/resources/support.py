"""Resources from texts, and what is wrong with texts."""

from pathlib import Path
from typing import Any

from steersman.documents import parse_documents
from steersman_operator.resources import ReadFile, RolloutEngine, WeightVersion, read_resources

ENGINE = """\
apiVersion: rollout.steersman.io/v1alpha1
kind: RolloutEngine
metadata:
  name: {name}
spec:
  model: {model}
"""


def engine_text(spec: str = "", *, name: str = "qwen", model: str = "qwen") -> str:
    """A RolloutEngine; ``spec`` are further lines of it, without indentation."""
    lines = "".join(f"  {line}\n" if line else "\n" for line in spec.splitlines())
    return ENGINE.format(name=name, model=model) + lines


def version_text(name: str, spec: str, *, model: str = "qwen") -> str:
    """A WeightVersion."""
    lines = "".join(f"  {line}\n" for line in spec.splitlines())
    return (
        "apiVersion: rollout.steersman.io/v1alpha1\nkind: WeightVersion\n"
        f"metadata: {{name: {name}}}\nspec:\n  model: {model}\n{lines}"
    )


def read(text: str, *, base: Path = Path(), file: str = "f.yaml") -> ReadFile:
    """What a file has."""
    return read_resources(parse_documents(file, text.encode()), base=base)


def problems(text: str, **kwargs: Any) -> list[str]:
    """What is wrong with a file."""
    found = read(text, **kwargs)
    assert not found.resources
    assert found.problems
    return list(found.problems)


def engine(text: str, **kwargs: Any) -> RolloutEngine:
    """The only resource of a file."""
    found = read(text, **kwargs)
    assert found.problems == ()
    (resource,) = found.resources
    assert isinstance(resource, RolloutEngine)
    return resource


def version(text: str, **kwargs: Any) -> WeightVersion:
    """The only resource of a file."""
    found = read(text, **kwargs)
    assert found.problems == ()
    (resource,) = found.resources
    assert isinstance(resource, WeightVersion)
    return resource
