"""What a run of the demonstration is told, and how it fails."""

from pathlib import Path

import msgspec

from steersman.errors import SteersmanError


class DemoError(SteersmanError):
    """The demonstration could not be carried out; says what broke, with the last lines of its log."""

    code = "demo_failed"
    remedy = "See the log of the process that the message names."


PROXIES = 2
"""Proxy processes of the fleet, on one port."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    duration: float = 20.0
    """Seconds of traffic; the scenario is stretched or squeezed to fit."""
    rate: float = 60.0
    """Requests per second."""
    engines: int = 3
    seed: int = 1
    plain: bool = False
    """Lines of text instead of a live table."""
    keep: bool = False
    """Leave the endpoint up after the run until a signal comes."""
    plot: Path | None = None
