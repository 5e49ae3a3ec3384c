"""The proxy's end of the control socket: it follows the leading operator, and keeps its table.

What is decided does no I/O and is in :mod:`~steersman_proxy.control.follower`; the ZeroMQ sockets are
in :mod:`~steersman_proxy.control.link`.
"""

from steersman_proxy.control.client import ControlClient
from steersman_proxy.control.security import ClientSecurity
from steersman_proxy.control.status import ControlStatus, LinkStatus

__all__ = ["ClientSecurity", "ControlClient", "ControlStatus", "LinkStatus"]
