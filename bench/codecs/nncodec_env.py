"""The environment that nncodec lives in: it needs numpy below 2, so it never shares ours."""

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "TERNMESH_NNCODEC_PYTHON"
_PACKAGES = ("nncodec==2.1.3", "numpy<2")
_INSTALL_S = 900


def nncodec_python() -> Path | None:
    """A Python that can import nncodec, made on first use; None (and a sentence) without one.

    TERNMESH_NNCODEC_PYTHON names one that exists. A new environment takes several gigabytes, since
    nncodec asks for the whole of torch.
    """
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "ternmesh-bench" / "nncodec"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing nncodec into {folder}", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet", *_PACKAGES]
            subprocess.run(command, check=True, timeout=_INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"nncodec cannot be installed, so it is not compared: {error}", flush=True)
            return None
        (folder / "ready").touch()
    return python
