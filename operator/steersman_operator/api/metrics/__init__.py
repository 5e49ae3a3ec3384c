"""The metrics of an operator process, all called ``steersman_operator_*``.

Labels come from fixed lists, or are names of pools; a pool's series go with the pool. Nothing is
labelled with an engine or a proxy: which one it is, ``steersman get`` and ``describe`` say.
"""

from steersman_operator.api.metrics.fleet import FleetMetrics

__all__ = ["FleetMetrics"]
