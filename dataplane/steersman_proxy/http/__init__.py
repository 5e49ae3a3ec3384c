"""HTTP at the proxy's two edges: the upstream client and the downstream adapters.

This is the only package of the proxy that opens sockets for data traffic. Above it, HTTP is heads
and bytes (``steersman_proxy.exchange``).
"""
