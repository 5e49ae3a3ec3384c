"""The demonstration: simulated engines, a real fleet over them, a trainer's traffic, and a strict
judge.

It uses the product as anybody would: `steersman up` with a manifest, commands, HTTP. It imports nothing
of operator and proxy.
"""
