"""Talks to the operator of a standalone fleet over its unix socket. Standard library only."""

from steersman_operator.client.errors import (
    FleetForbidden,
    FleetSilent,
    NoFleet,
    OperatorRefused,
)
from steersman_operator.client.fleet import Edited, FleetClient, Refitted, fleet_directory

__all__ = [
    "Edited",
    "FleetClient",
    "FleetForbidden",
    "FleetSilent",
    "NoFleet",
    "OperatorRefused",
    "Refitted",
    "fleet_directory",
]
