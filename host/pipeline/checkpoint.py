"""The checkpoints of a rank: safetensors files, complete or absent; the last two are kept."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from host.pipeline.config import PipelineError

KEPT = 2


class Checkpoints:
    """The checkpoints of rank `rank` in a folder; `digest` identifies the run."""

    def __init__(self, folder: Path, rank: int, digest: str) -> None:
        self._folder = folder
        self._rank = rank
        self._digest = digest

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in rising order."""
        names = self._folder.glob(f"rank-{self._rank}-*.safetensors")
        return sorted(int(path.stem.rpartition("-")[2]) for path in names)

    def save(self, step: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write the state after `step` steps to disk, and delete all but the last two."""
        self._folder.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        scratch = self._path(step).with_suffix(".new")
        save_file(whole, scratch, metadata={"digest": self._digest, "step": str(step)})
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.replace(self._path(step))
        for old in self.steps()[:-KEPT]:
            self._path(old).unlink()

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, from which all ranks go on.

        They are no longer part of the run, and would be kept in place of the next ones.
        """
        for later in self.steps():
            if later > step:
                self._path(later).unlink()

    def load(self, step: int) -> dict[str, Tensor]:
        """The state after `step` steps; PipelineError where it is damaged or of another run."""
        path = self._path(step)
        try:
            with safe_open(path, framework="pt") as file:
                metadata: Mapping[str, str] = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise PipelineError(
                f"{path} is damaged ({error}): remove it to use an older one"
            ) from error
        if metadata.get("digest") != self._digest:
            raise PipelineError(
                f"{path} was made with another configuration: give this run its own state_dir, or "
                "restore the settings of the checkpoint"
            )
        return tensors

    def _path(self, step: int) -> Path:
        return self._folder / f"rank-{self._rank}-{step}.safetensors"


def common_step(steps: Sequence[Sequence[int]]) -> int:
    """The last step for which every rank has a checkpoint, or 0 where there are none yet.

    PipelineError where ranks have checkpoints but none in common: progress would be lost silently.
    Only the first checkpoint may be missing on some ranks, which died before they saved it.
    """
    sets = [set(each) for each in steps]
    common = set.intersection(*sets)
    found = set.union(*sets)
    if not common and len(found) > 1:
        step = max(found)
        missing = [str(rank) for rank, own in enumerate(sets) if step not in own]
        raise PipelineError(
            f"ranks have no checkpoint of a step in common: that of step {step} is missing on "
            f"rank {', '.join(missing)}; bring it back into state_dir/checkpoints, or remove "
            "that folder on all machines to start again"
        )
    return max(common, default=0)


def copy_into(parameters: Iterable[tuple[str, Tensor]], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into named parameters; PipelineError for a missing name or another shape."""
    with torch.no_grad():
        for name, parameter in parameters:
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise PipelineError(
                    f"the checkpoint does not hold {name} in the shape of this model"
                )
            parameter.copy_(tensors[name])
