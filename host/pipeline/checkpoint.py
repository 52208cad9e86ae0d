"""Checkpoints of one rank: safetensors files that are whole or absent, and the last two of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from host.pipeline.errors import PipelineError

KEPT = 2


class Checkpoints:
    """Those of rank `rank` in a folder; `digest` tells runs apart."""

    def __init__(self, folder: Path, rank: int, digest: str) -> None:
        self._folder, self._rank, self._digest = folder, rank, digest

    def steps(self) -> list[int]:
        """The steps after which there is one, in rising order."""
        names = self._folder.glob(f"rank-{self._rank}-*.safetensors")
        return sorted(int(path.stem.rpartition("-")[2]) for path in names)

    def save(self, step: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Keep the state after `step` steps, on disk when this returns; forget all but two."""
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
        """Delete what ranks have saved after the step from which all go on.

        It is not a part of this run any more, and would be kept in place of what is saved next.
        """
        for later in self.steps():
            if later > step:
                self._path(later).unlink()

    def load(self, step: int) -> dict[str, Tensor]:
        """The state after `step` steps; PipelineError where it is another run's or broken."""
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
                "go back to the settings of the checkpoint"
            )
        return tensors

    def _path(self, step: int) -> Path:
        return self._folder / f"rank-{self._rank}-{step}.safetensors"


def common_step(steps: Sequence[Sequence[int]]) -> int:
    """The last step after which every rank has a checkpoint, or 0 where none has got that far.

    PipelineError where ranks have checkpoints and none in common: progress would be lost without a
    word. Only the first one may be missing on some: they died before they had saved it.
    """
    sets = [set(each) for each in steps]
    common, found = set.intersection(*sets), set.union(*sets)
    if not common and len(found) > 1:
        step = max(found)
        lacking = [str(rank) for rank, own in enumerate(sets) if step not in own]
        raise PipelineError(
            f"ranks have no checkpoint of a step in common: that of step {step} is missing on "
            f"rank {', '.join(lacking)}; bring it back into state_dir/checkpoints, or remove "
            "that folder on all machines to begin anew"
        )
    return max(common, default=0)


def copy_into(parameters: Iterable[tuple[str, Tensor]], tensors: Mapping[str, Tensor]) -> None:
    """Give named tensors their values; PipelineError where a name or a shape does not fit."""
    with torch.no_grad():
        for name, parameter in parameters:
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise PipelineError(f"the checkpoint does not hold {name} as this model has it")
            parameter.copy_(tensors[name])
