"""The errors of models/.

TernmeshError
├── ExportError         a torch module that cannot become a model package
└── BottleneckError     a payload between two stages that cannot be used
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ternmesh.errors import TernmeshError

_OPERATOR_PATTERNS = (
    r"OpOverload\(op='([\w.:]+)'",  # torch.onnx has no translation
    r"implementation for ([\w.:]+)",  # onnxruntime has no kernel
)
_ADVICE = {  # words of an exporter's error, and what to do about it
    "data-dependent": "it has data-dependent control flow or sizes (if, while, .item(), a mask as "
    "an index), so use torch.where instead",
    "inferred ranges": "its code fixes the size of the batch (a loop over the samples, a size as a "
    "number), so compute the whole batch at once",
    "same dtype": "the types of the example batch and of the weights differ, so convert the batch "
    "with .float()",
}


class ExportError(TernmeshError):
    """A torch module cannot be exported, or its export computes something else."""


class BottleneckError(TernmeshError):
    """A payload between two stages is damaged, not finite, or of another size."""


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turn any error of an exporter into an ExportError that names the operator."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(_sentence(what, error)) from error


def _sentence(what: str, error: BaseException) -> str:
    chain = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        chain.append(str(error))
    for text in chain:
        for pattern in _OPERATOR_PATTERNS:
            if match := re.search(pattern, text):
                return (
                    f"{what} cannot be exported: onnxruntime has no operator for {match[1]}, "
                    "so use another layer or function in its place"
                )
        for words, advice in _ADVICE.items():
            if words in text:
                return f"{what} cannot be exported: {advice}"
    reason = next((line for line in chain[-1].splitlines() if line.strip()), type(error).__name__)
    return f"{what} cannot be exported: {reason.strip()}"
