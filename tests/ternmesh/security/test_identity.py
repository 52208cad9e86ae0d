import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import SecurityError
from ternmesh.security import identity
from ternmesh.security.identity import Identity, PublicIdentity, Role

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", fullmatch=True)
seeds = st.binary(min_size=64, max_size=64).filter(lambda data: len(set(data)) >= 16)
identities = st.builds(identity.make_identity, names, st.sampled_from(Role), seeds)


@given(identities)
def test_every_form_reads_back(made: Identity) -> None:
    public = made.public
    assert identity.read_identity(identity.write_identity(public)) == public
    assert identity.parse_identity(identity.identity_text(public)) == public
    assert identity.parse_private(identity.private_text(made)) == made
    assert len(identity.write_identity(public)) <= 99


@given(identities, st.data())
def test_a_wrong_letter_is_found(made: Identity, data: st.DataObject) -> None:
    text = identity.identity_text(made.public)
    at = data.draw(st.integers(4, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
    wrong = text[:at] + letter + text[at + 1 :]
    if wrong != text:
        with pytest.raises(SecurityError):
            identity.parse_identity(wrong)


def test_a_line_has_one_form() -> None:
    made = identity.make_identity("dora1", Role.NODE, bytes(range(64)))
    text = identity.identity_text(made.public)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    spare = text[:-1] + letters[letters.index(text[-1]) + 1]  # two bits of it carry nothing
    for other in (text.lower(), text + "A", text + "=", text.replace("TM1:", "TM1: "), spare):
        with pytest.raises(SecurityError):
            identity.parse_identity(other)


def test_the_text_suits_a_qr_code_of_letters_and_digits() -> None:
    made = identity.make_identity("n" * 32, Role.GATEWAY, bytes(range(64)))
    text = identity.identity_text(made.public)
    assert set(text) <= set("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:")
    assert len(text) <= 170


def test_the_private_half_is_never_shown() -> None:
    made = identity.make_identity("theo", Role.NODE, bytes(range(64)))
    assert made.seeds.hex() not in repr(made).lower()
    assert repr(made.seeds) not in repr(made)
    with pytest.raises(SecurityError) as caught:
        identity.parse_private(identity.private_text(made)[:-1] + "A")
    assert identity.private_text(made)[20:60] not in str(caught.value)


def test_what_is_not_random_makes_no_identity() -> None:
    for entropy in (bytes(64), b"ab" * 32, bytes(range(63))):
        with pytest.raises(ValueError, match="random"):
            identity.make_identity("theo", Role.NODE, entropy)


def test_a_weak_key_is_no_identity() -> None:
    weak = PublicIdentity("theo", Role.NODE, (1).to_bytes(32, "little"), bytes(range(32)))
    with pytest.raises(SecurityError, match="weak"):
        identity.read_identity(identity.write_identity(weak))
