"""Talks to the operator of a standalone fleet over its unix socket. Standard library only."""

from steersman_operator.client.errors import (
    EditRefused,
    FleetForbidden,
    FleetSilent,
    NoFleet,
)
from steersman_operator.client.fleet import Edited, FleetClient, fleet_directory

__all__ = [
    "EditRefused",
    "Edited",
    "FleetClient",
    "FleetForbidden",
    "FleetSilent",
    "NoFleet",
    "fleet_directory",
]
