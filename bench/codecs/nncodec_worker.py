"""nncodec (ISO/IEC 15938-17) in an environment of its own: `python nncodec_worker.py IN.npz`.

It needs numpy below 2. For each vector, its rate and captured energy over the range of its
quantisation parameter, as one JSON line. Vectors are given as rows of 256 with unit variance.
"""

import contextlib
import io
import json
import sys
import tempfile

import numpy as np

SWEEP = range(-2, 25)
WIDTH = 256


def main() -> None:
    """Sweep every vector of the file."""
    from nncodec import tensor

    answer = {}
    with np.load(sys.argv[1], allow_pickle=False) as vectors, tempfile.TemporaryDirectory() as out:
        for name in vectors.files:
            vector = vectors[name]
            scaled = vector / vector.std()
            rows = np.zeros((-(-vector.size // WIDTH), WIDTH), dtype=np.float32)
            rows.reshape(-1)[: vector.size] = scaled
            points = []
            for qp in SWEEP:
                with contextlib.redirect_stdout(io.StringIO()):
                    wire = tensor.encode(rows, {"qp": qp, "results": out})
                    decoded = tensor.decode(wire).astype(np.float64)
                energy = float((decoded**2).sum())
                share = float((rows * decoded).sum()) ** 2 / (float((rows**2).sum()) * energy or 1)
                points.append((8 * len(wire) / vector.size, share if energy else 0.0))
            answer[name] = points
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
