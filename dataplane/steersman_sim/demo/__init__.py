"""The demonstration: simulated engines, a real proxy, a trainer's traffic, and a strict judge.

It uses the product as anybody would: processes, a table file, HTTP. It imports nothing of the
proxy.
"""
