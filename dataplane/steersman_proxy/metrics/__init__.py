"""The metrics of a proxy process, under SMG's names where its dashboards have them.

``smg_*`` names are those of SMG; ``steersman_*`` are ours. Every label comes from a fixed list or
from the fleet table, never from a client's text.
"""

from steersman_proxy.metrics.proxy import ProxyMetrics
from steersman_proxy.metrics.table import TableStatus, status_of_file

__all__ = ["ProxyMetrics", "TableStatus", "status_of_file"]
