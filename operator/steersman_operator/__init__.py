"""The operator: the only writer of the fleet table.

It watches a Kubernetes cluster (or a directory), decides what every engine is, carries out pauses,
sleeps and refits, and pushes one table to the proxies.
"""
