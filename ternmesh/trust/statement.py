"""What is signed, so that no signature can be taken for another one. SPEC.md section 9.7."""

START = b"ternmesh 1 "


def statement(domain: str, *parts: bytes) -> bytes:
    """The bytes under a signature: the domain, then each part behind its u32 length."""
    return START + b"".join(
        len(part).to_bytes(4, "little") + part for part in (domain.encode(), *parts)
    )
