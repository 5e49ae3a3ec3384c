"""What can go wrong when a command talks to the operator."""

from steersman.errors import SteersmanError


class NoFleet(SteersmanError):
    """Nothing runs in the directory that was meant."""

    code = "no_fleet"
    remedy = (
        "Start one with `steersman up -f DIR`, or name the directory of the one that runs with "
        "-f or $STEERSMAN_DIR."
    )


class FleetForbidden(SteersmanError):
    """The fleet belongs to another user."""

    code = "fleet_forbidden"
    remedy = "Run the command as the user who runs `steersman up`."


class FleetSilent(SteersmanError):
    """A fleet runs in the directory, and its operator does not answer."""

    code = "fleet_silent"
    remedy = "See .steersman/operator.log in the directory of the fleet."


class OperatorRefused(SteersmanError):
    """The operator did not carry out what was asked; ``str()`` is its sentence.

    ``status`` is 404 if there is no such thing, 409 if it may not be done now, 422 if the manifest
    must be mended first.
    """

    code = "operator_refused"
    remedy = "The message says what to do instead."

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
