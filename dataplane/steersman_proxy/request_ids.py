"""Request ids for requests that came without one.

All have one length, so that none is the beginning of another: SGLang aborts by prefix.
"""

import itertools
import os


class RequestIds:
    """Makes ids that are unique across replicas and restarts: random prefix, then a counter."""

    def __init__(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._counter = itertools.count(1)

    def __call__(self) -> str:
        """The next id, such as ``st-3f9a0c1d2e4b-000000001a``."""
        return f"st-{self._prefix}-{next(self._counter):010x}"
