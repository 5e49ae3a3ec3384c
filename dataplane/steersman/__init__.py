"""The shared vocabulary: what the operator, the proxies and the sim engine say to each other.

Nothing here performs I/O or imports another Steersman package.
"""

__version__ = "0.1.0"
