"""How one engine is chosen among the eligible ones.

Each policy is a :class:`~steersman_proxy.routing.policies.chooser.Chooser`. Routing keys are not
their business: a key pins under every policy, see :mod:`steersman_proxy.routing.affinity`.
"""
