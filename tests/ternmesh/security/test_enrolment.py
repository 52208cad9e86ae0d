import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError, WireError
from ternmesh.security import enrolment
from ternmesh.security.identity import Role, make_identity, write_identity
from ternmesh.security.membership import MemberList, found_fleet
from tests.ternmesh.security.trust_ends import entropy, someone

HOST, THEO, DORA = someone("greenhouse", Role.HOST), someone("theo"), someone("dora")
TEXT = enrolment.make_code(entropy("code")[:12])
CODE = enrolment.read_code(TEXT)


def begin(expires_at: float = 60.0) -> tuple[enrolment.EnrolmentCodes, MemberList]:
    enrolments = enrolment.EnrolmentCodes()
    enrolments.issue(TEXT, Role.NODE, expires_at, 0.0)
    return enrolments, MemberList(found_fleet("tomatoes", HOST.public))


def refused(
    enrolments: enrolment.EnrolmentCodes, member_list: MemberList, body: bytes, now: float = 0.0
) -> str:
    before = member_list.state
    with pytest.raises(WireError) as caught:
        enrolments.accept(body, member_list, now)
    assert member_list.state == before
    return caught.value.reason


def test_a_code_brings_host_and_node_together() -> None:
    enrolments, member_list = begin()
    request = enrolment.write_request(THEO.public, CODE)
    public, answer = enrolments.accept(request, member_list, 0.0)
    assert public == member_list.find("theo") == THEO.public
    assert enrolment.read_answer(answer, THEO.public, CODE) == found_fleet("tomatoes", HOST.public)
    assert enrolments.accept(request, member_list, 1.0) == (public, answer)  # the answer was lost
    assert len(request) + 14 < 164
    assert len(answer) + 14 < 184


def test_a_code_has_96_bits_and_survives_handwriting() -> None:
    assert enrolment.read_code(TEXT.lower().replace("-", " ")) == CODE
    assert enrolment.read_code(TEXT.replace("O", "0").replace("I", "1")) == CODE
    assert len(TEXT.replace("-", "")) * 5 - 4 == 96
    for entropy_bytes in (bytes(12), bytes(11)):
        with pytest.raises(ValueError, match="random"):
            enrolment.make_code(entropy_bytes)


@given(st.text(max_size=30))
def test_any_text_is_a_code_or_a_trust_error(text: str) -> None:
    with pytest.raises(SecurityError, match="type it again"):
        enrolment.read_code(text)


def test_what_a_code_does_not_enrol() -> None:  # R9.6-2, R9.6-3
    enrolments, member_list = begin(expires_at=60.0)
    request = enrolment.write_request(THEO.public, CODE)
    nonsense = bytes((enrolment.REQUEST,)) + CODE.label + write_identity(THEO.public)[:-1]
    nonsense += enrolment._proof(CODE, "enrol request", write_identity(THEO.public)[:-1])
    gateway = someone("theo", Role.GATEWAY).public
    assert refused(enrolments, member_list, nonsense) == "enrolment", "proved, and no identity"
    assert refused(enrolments, member_list, enrolment.write_request(gateway, CODE)) == "role"
    assert refused(enrolments, member_list, request, 60.0) == "code", "it has expired"
    enrolments, known = begin()
    known.enrol(make_identity("theo", Role.NODE, entropy("other")).public)
    assert refused(enrolments, known, request) == "enrolment", "it replaces no key"
    _, answer = enrolments.accept(request, member_list, 0.0)  # it is still good
    assert refused(enrolments, member_list, enrolment.write_request(DORA.public, CODE)) == "code"
    for wrong, who in (
        (answer[:-1] + bytes((answer[-1] ^ 1,)), THEO),
        (answer[:5] + b"x" + answer[6:], THEO),
        (answer, DORA),
    ):
        with pytest.raises(WireError, match="with the code"):
            enrolment.read_answer(wrong, who.public, CODE)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_who_lacks_the_code_enrols_nothing(at: int, flip: int) -> None:  # R9.6-3
    enrolments, member_list = begin()
    body = bytearray(enrolment.write_request(THEO.public, CODE))
    body[at % len(body)] ^= flip
    assert refused(enrolments, member_list, bytes(body)) in ("code", "length")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    enrolments, member_list = begin()
    refused(enrolments, member_list, data)
    refused(enrolments, member_list, bytes((enrolment.REQUEST,)) + CODE.label + data)
    for body in (data, bytes((enrolment.ANSWER,)) + data):
        with pytest.raises(WireError):
            enrolment.read_answer(body, THEO.public, CODE)


def test_codes_are_bounded() -> None:
    enrolments = enrolment.EnrolmentCodes()
    for number in range(enrolment.CODES_MAX):
        enrolments.issue(enrolment.make_code(entropy(number)[:12]), Role.NODE, 60.0, 0.0)
    with pytest.raises(SecurityError, match="codes are valid"):
        enrolments.issue(TEXT, Role.NODE, 60.0, 0.0)
    enrolments.issue(TEXT, Role.NODE, 120.0, 60.0)
