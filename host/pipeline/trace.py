"""What a rank does in time, as a trace for chrome://tracing or Perfetto."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule

WAIT, WARMUP, ACTIVE = 2, 1, 3  # steps before, to settle, and that are kept


@contextmanager
def tracing(folder: Path | None, rank: int) -> Iterator[Callable[[], None]]:
    """What to call after each step; steps 4 to 6 of this process go to folder/trace-RANK.json.

    Nothing is traced where `folder` is None.
    """
    if folder is None:
        yield lambda: None
        return
    path = folder / f"trace-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        yield profiler.step
