"""Errors of this package."""

from ternmesh.errors import TernmeshError


class FirmwareError(TernmeshError):
    """A board or modem cannot be set up; the message says why and what to do."""


class NoAnswer(FirmwareError):
    """A device did not answer, or not in time."""
