"""The manifest of the run: one pool with the simulated engines, as anybody would write it."""

from collections.abc import Mapping

POOL = "rollout"
MODEL = "sim-model"


def render_manifest(urls: Mapping[str, str]) -> str:
    """A RolloutEngine over engines, given by name and base URL."""
    engines = "".join(f'      - {{name: {name}, url: "{url}"}}\n' for name, url in urls.items())
    return f"""\
apiVersion: rollout.steersman.io/v1alpha1
kind: RolloutEngine
metadata:
  name: {POOL}
spec:
  model: {MODEL}
  runtime: sglang
  endpoints:
    static:
{engines}\
  routing:
    policy: power_of_two
    # A request of a session waits for its own engine while that is being changed.
    stickyPause: true
"""
