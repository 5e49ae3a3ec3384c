"""A fleet on one machine: operator and proxies as processes, a directory instead of a cluster."""
