"""The manifest of the demonstration is read here by the operator's own reader."""

from steersman.engine import Control, Runtime
from steersman_operator.resources import to_pools
from steersman_sim.demo.manifest import MODEL, POOL, render_manifest
from tests.demo.made_up import URLS
from tests.resources.support import engine


def test_the_operator_reads_the_manifest():
    (pool,) = to_pools((engine(render_manifest(URLS)),), ()).pools
    assert (pool.name, pool.models, pool.state) == (POOL, (MODEL,), Control.ACTIVE)
    assert {one.name: one.url for one in pool.engines} == URLS
    assert {one.runtime for one in pool.engines} == {Runtime.SGLANG}
    assert pool.settings.sticky_pause
