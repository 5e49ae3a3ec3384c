"""The splice adapter: regular requests go through as the bytes that they are.

It owns the port. A request that its strict pattern does not match is left to the aiohttp adapter,
together with the connection that it came on.
"""
