"""Who belongs to the host's fleet: what `ternmesh enrol` asks, of a running host or its files."""

from collections.abc import Mapping
from typing import Any

from host.desk import Desk
from ternmesh.errors import TernmeshError, TrustError
from ternmesh.trust.identity import Role, identity_text, parse_identity, parse_rotation
from ternmesh.trust.neighbours import write_fleet
from ternmesh.trust.roster import write_revocations
from ternmesh_store.keyring import Keyring, NoKeyring

MINUTES_MAX = 24 * 60
ASK = "enrol"  # the key of a request on the control socket that is for this room


def answer(keyring: Keyring | NoKeyring, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `{"enrol": "list" | "add" | "revoke" | "rotate" | "export"}`, or an "error"."""
    if isinstance(keyring, NoKeyring):
        return {"error": "this host was started with --insecure: it has no members"}
    try:
        match request.get(ASK):
            case "list":
                pass
            case "add":
                _add(keyring, str(request.get("identity", "")))
            case "revoke":
                _revoke(keyring, str(request.get("name", "")))
            case "rotate":
                keyring.roster.rotate(parse_rotation(str(request.get("rotation", ""))))
                keyring.keep_rotation()
            case "export":
                fleet = write_fleet(keyring.own, keyring.roster.state)
                return {**members(keyring), "fleet_list": fleet}
            case other:
                raise TrustError(f"{other!r} is nothing that a host can be asked about its fleet")
    except TernmeshError as error:
        return {"error": str(error)}
    return members(keyring)


def code(desk: Desk[Any], request: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The answer to `{"enrol": "code", "role": ..., "minutes": ...}`."""
    try:
        role, minutes = Role[str(request.get("role", "")).upper()], float(request["minutes"])
        if not 0 < minutes <= MINUTES_MAX or role is Role.HOST:
            raise ValueError
        return {"code": desk.issue(role, 60 * minutes, now), "minutes": minutes}
    except (KeyError, TypeError, ValueError, OverflowError):
        return {"error": f"a code is for a role, and lasts at most {MINUTES_MAX} minutes"}
    except TernmeshError as error:
        return {"error": str(error)}


def members(keyring: Keyring) -> dict[str, Any]:
    """The fleet, ready for JSON."""
    roster = keyring.roster
    state = roster.state
    return {
        "fleet": roster.fleet.hex(),
        "host": identity_text(roster.host),
        "members": [
            {
                "name": member.name,
                "role": member.role.name.lower(),
                "fingerprint": member.fingerprint.hex(),
                "revoked": member.fingerprint in state.revoked,
            }
            for member in state.members
        ],
    }


def _add(keyring: Keyring, text: str) -> None:
    if keyring.roster.enrol(parse_identity(text)):
        keyring.keep_roster()


def _revoke(keyring: Keyring, name: str) -> None:
    roster = keyring.roster
    state = roster.state
    for member in state.members:
        if member.name == name:
            break
    else:
        raise TrustError(f"{name} is not enrolled: `ternmesh enrol list` shows who is")
    revoked = {*state.revoked, member.fingerprint}
    roster.revoke(write_revocations(keyring.own, roster.fleet, state.number + 1, revoked))
    keyring.keep_roster()
    keyring.rekey()
