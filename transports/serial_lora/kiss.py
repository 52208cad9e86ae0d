"""KISS: commands between FEND bytes (Chepponis and Karn, 1987)."""

FEND, FESC, TFEND, TFESC = 0xC0, 0xDB, 0xDC, 0xDD
FRAME_MAX = 600  # escaped bytes between two FEND; more is noise
_ESCAPED_FEND, _ESCAPED_FESC = bytes([FESC, TFEND]), bytes([FESC, TFESC])


def frame(command: int, data: bytes = b"") -> bytes:
    """One command with its data, ready to write."""
    content = bytes([command]) + data
    content = content.replace(b"\xdb", _ESCAPED_FESC).replace(b"\xc0", _ESCAPED_FEND)
    return b"\xc0" + content + b"\xc0"


class Unframer:
    """Finds the commands in a stream; what is no KISS is counted and skipped."""

    def __init__(self) -> None:
        self.malformed = 0
        self._part = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The commands that end in `data`, each with its data."""
        *ends, rest = data.split(b"\xc0")
        frames = []
        for piece in ends:
            self._add(piece)
            if (content := self._finish()) is not None:
                frames.append((content[0], content[1:]))
        self._add(rest)
        return frames

    def _add(self, piece: bytes) -> None:
        self._overlong |= len(self._part) + len(piece) > FRAME_MAX
        if self._overlong:
            self._part.clear()
        else:
            self._part += piece

    def _finish(self) -> bytes | None:
        escaped, overlong = bytes(self._part), self._overlong
        self._part.clear()
        self._overlong = False
        if not escaped and not overlong:
            return None
        content = escaped.replace(_ESCAPED_FEND, b"\xc0").replace(_ESCAPED_FESC, b"\xdb")
        proper = escaped.count(FESC) == escaped.count(_ESCAPED_FEND) + escaped.count(_ESCAPED_FESC)
        if not content or not proper:
            self.malformed += 1
            return None
        return content
