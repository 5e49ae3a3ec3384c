"""Which engine takes a request: eligibility first, then affinity, then the pool's policy. No I/O.

:mod:`~steersman_proxy.routing.fleet` owns what is known and chooses; ``hold`` keeps those waiting
who can be served soon; ``explain`` says why.
"""
