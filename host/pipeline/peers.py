"""The replicas of one stage among each other: small messages on links of their own."""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from host.pipeline.errors import PipelineError

MESSAGE_MAX = 1 << 30


class Peers:
    """`count` replicas of a stage, of which this one is number `own`; connects at once.

    `sent_bytes` is what it has told each of the others.
    """

    def __init__(self, store: Store, own: int, count: int, timeout_s: float) -> None:
        self.own, self.count = own, count
        self.sent_bytes = 0
        # Always gloo: what is exchanged are bytes and lies on the CPU, whatever the stages use.
        limit = timedelta(seconds=timeout_s)
        self._group: Any = ProcessGroupGloo(store, own, count, limit)

    def gather(self, message: bytes) -> list[bytes]:
        """What each replica says, in their order; PipelineError for a message that is too long."""
        sizes = [int(size) for size in self._all(torch.tensor([len(message)]))]
        if max(sizes) > MESSAGE_MAX:
            raise PipelineError(f"a replica sends {max(sizes)} bytes: at most {MESSAGE_MAX}")
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        rows = self._all(padded)
        return [row[:size].numpy().tobytes() for row, size in zip(rows, sizes, strict=True)]

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of the replicas' tensors, where `tensor` lies."""
        total = tensor.detach().cpu().clone()
        self._count(total)
        self._group.allreduce([total]).wait()
        return (total / self.count).to(tensor.device)

    def first(self, tensor: Tensor) -> Tensor:
        """The first replica's tensor."""
        same = tensor.detach().cpu().clone()
        self._count(same)
        self._group.broadcast(same, 0).wait()
        return same.to(tensor.device)

    def _all(self, tensor: Tensor) -> list[Tensor]:
        self._count(tensor)
        rows = [torch.zeros_like(tensor) for _ in range(self.count)]
        self._group.allgather([rows], [tensor]).wait()
        return rows

    def _count(self, tensor: Tensor) -> None:
        self.sent_bytes += tensor.numel() * tensor.element_size()
