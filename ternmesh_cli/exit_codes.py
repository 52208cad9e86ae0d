"""The exit codes of the `ternmesh` command. The units in packaging/systemd restart by them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. The sentence stands in `--help` and in docs/service.md."""

    sentence: str

    DONE = 0, "done, or stopped by SIGINT or SIGTERM"
    REFUSED = (
        1,
        "cannot start or continue: data, disk or model is missing; a sentence on stderr says why",
    )
    MISUSED = 2, "the command line or the configuration is wrong; a sentence says what is allowed"
    NAME_TAKEN = 3, "another process uses this name on the broker already"
    INTERRUPTED = 130, "interrupted before it was done, or while it started"

    def __new__(cls, code: int, sentence: str) -> "ExitCode":
        made = int.__new__(cls, code)
        made._value_ = code
        made.sentence = sentence
        return made


EXIT_CODES = "exit codes:\n" + "".join(f"  {code:d}  {code.sentence}\n" for code in ExitCode)
