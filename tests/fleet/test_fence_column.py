"""What the core assumes of a proxy, the table tells it."""

import pytest

from steersman_operator.fleet.rows import pool_row
from steersman_operator.fleet.spec import OnUnreachable, PoolSpec


@pytest.mark.parametrize("choice", list(OnUnreachable))
def test_proxies_fence_themselves_exactly_where_the_core_counts_them_out(
    choice: OnUnreachable,
) -> None:
    pool = PoolSpec(name="p", models=("m",), on_unreachable=choice)

    settings = pool_row(pool, fleet_max=None).settings

    assert settings is not None
    assert settings.fence is (choice is OnUnreachable.FENCE)
