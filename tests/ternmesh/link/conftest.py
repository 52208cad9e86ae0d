"""Puts the medium of links with keys where the tests beside it can import it.

Under `--import-mode=importlib` a test's own folder is not on the path.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
