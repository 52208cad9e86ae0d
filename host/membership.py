"""The members of the host's fleet: the answers to `ternmesh enrol`, for a running host or not."""

from collections.abc import Mapping
from typing import Any

from host.enrolment import EnrolmentService
from ternmesh.errors import SecurityError, TernmeshError
from ternmesh.security.host_keys import host_text
from ternmesh.security.identity import Role, parse_identity
from ternmesh.security.membership import MemberList, fleet_text, parse_fleet, write_fleet
from ternmesh_service.keyring import Keyring, NoKeyring

MINUTES_MAX = 24 * 60
ASK = "enrol"  # a request on the control socket with this key is for this module


def answer(
    keyring: Keyring | NoKeyring,
    request: Mapping[str, Any],
    service: EnrolmentService | None = None,
    now: float = 0.0,
) -> dict[str, Any]:
    """The answer to `{"enrol": ...}` with a word of the match below, or an "error".

    A running host's `service` also answers `{"enrol": "code", "role": ..., "minutes": ...}`.
    """
    if isinstance(keyring, NoKeyring):
        return {
            "error": "this host was started with --insecure: a fleet without keys has no members"
        }
    try:
        match request.get(ASK):
            case "list":
                pass
            case "add":
                _add(keyring, request.get("identities", {"": request.get("identity")}))
            case "revoke":
                keyring.member_list.revoke(str(request.get("name", "")))
                keyring.keep_member_list()
                keyring.rekey()
            case "export":
                fleet = write_fleet(keyring.own, keyring.member_list.state)
                return {**members(keyring), "fleet_list": fleet_text(fleet)}
            case "import":
                keyring.learn(parse_fleet(str(request.get("fleet_list", ""))))
            case "code" if service is not None:
                return _code(service, request, now)
            case other:
                raise SecurityError(
                    f"{other!r} is nothing that a host can be asked about its fleet"
                )
    except TernmeshError as error:
        return {"error": str(error)}
    return members(keyring)


def _add(keyring: Keyring, identities: object) -> None:
    """Enrol identities, each by where it comes from; SecurityError, and none is enrolled."""
    if not isinstance(identities, dict):
        raise SecurityError("`add` needs the identities")
    trial = MemberList(keyring.member_list.state)
    found = []
    for where, identity in identities.items():
        try:
            found.append(parse_identity(str(identity)))
            trial.enrol(found[-1])
        except SecurityError as error:
            raise SecurityError(f"{where}{error}") from error
    if sum(keyring.member_list.enrol(public) for public in found):
        keyring.keep_member_list()


def _code(service: EnrolmentService, request: Mapping[str, Any], now: float) -> dict[str, Any]:
    try:
        role = Role[str(request.get("role", "")).upper()]
        minutes = float(request["minutes"])
        if not 0 < minutes <= MINUTES_MAX or role is Role.HOST:
            raise ValueError
        return {"code": service.issue(role, 60 * minutes, now), "minutes": minutes}
    except (KeyError, TypeError, ValueError, OverflowError):
        return {"error": f"a code needs a role other than host, and at most {MINUTES_MAX} minutes"}


def members(keyring: Keyring) -> dict[str, Any]:
    """The fleet and its members, ready for JSON."""
    member_list = keyring.member_list
    state = member_list.state
    return {
        "fleet": member_list.fleet.hex(),
        "host": host_text(member_list.hosts),
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
