"""The operator's end of the control socket: every proxy gets the newest table, and says so.

What is decided (sessions, what is sent to whom and when) does no I/O and is in
:mod:`~steersman_operator.control.hub`; the ZeroMQ socket is in
:mod:`~steersman_operator.control.server`.
"""

from steersman_operator.control.listener import ControlListener
from steersman_operator.control.security import Security
from steersman_operator.control.server import ControlServer
from steersman_operator.control.stats import ControlStats, SessionStats

__all__ = ["ControlListener", "ControlServer", "ControlStats", "Security", "SessionStats"]
