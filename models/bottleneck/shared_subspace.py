"""The subspace that all stages have in common (Protocol Models, arXiv 2506.01260).

All weights that write into the residual stream have their rows in S = span(U). So the activations
x less the fixed part T_fixed[t] + PE, which all stages can compute, lie in S: k numbers hold them.
"""

import hashlib

import torch
from torch import Tensor, nn


class SharedSubspace(nn.Module):
    """The subspace S and the fixed part of x; layers, boundaries and optimiser share one object.

    While `collecting` is set, `gram` sums G^T G over the gradients G at the boundaries.
    """

    basis: Tensor  # U [width, k], orthonormal columns
    table: Tensor  # T_fixed [vocabulary, width]
    gram: Tensor  # [width, width]

    def __init__(self, basis: Tensor, table: Tensor, positions: Tensor | None = None) -> None:
        super().__init__()
        width = basis.shape[0]
        self.register_buffer("basis", basis)
        self.register_buffer("table", table)
        self.register_buffer("positions", positions)
        self.register_buffer("gram", torch.zeros(width, width))
        self.collecting = False

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def known(self, tokens: Tensor) -> Tensor:
        """T_fixed[t] + PE [batch, length, width]: the part of x that is not sent."""
        fixed = nn.functional.embedding(tokens, self.table)
        positions = self.get_buffer("positions")
        return fixed if positions is None else fixed + positions[: tokens.shape[1]]

    def digest(self) -> str:
        """16 hex digits of what all ranks must have drawn alike: T_fixed and PE."""
        parts = [self.table] + ([] if self.positions is None else [self.get_buffer("positions")])
        whole = hashlib.sha256()
        for part in parts:
            whole.update(part.cpu().numpy().tobytes())
        return whole.hexdigest()[:16]

    def watch(self, x: Tensor) -> Tensor:
        """x itself; its gradient is added to `gram` while `collecting` is set."""
        if self.collecting and x.requires_grad:
            x.register_hook(self._add)  # type: ignore[no-untyped-call]
        return x

    def _add(self, gradient: Tensor) -> None:
        rows = gradient.detach().reshape(-1, gradient.shape[-1]).float()
        self.gram += rows.T @ rows


def make_basis(width: int, rank: int, seed: int) -> Tensor:
    """U [width, rank], drawn from the seed: equal on all ranks with the same library."""
    generator = torch.Generator().manual_seed(seed)
    return orthonormal(torch.randn(width, rank, generator=generator))


def make_table(vocabulary: int, width: int, std: float, seed: int) -> Tensor:
    """T_fixed [vocabulary, width], drawn from the seed."""
    generator = torch.Generator().manual_seed(seed + 1)
    return std * torch.randn(vocabulary, width, generator=generator)


def orthonormal(matrix: Tensor) -> Tensor:
    """Q of the QR decomposition in float64, with the diagonal of R made positive."""
    q, r = torch.linalg.qr(matrix.double())
    signed: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return signed.float().contiguous()  # LAPACK's and cuSOLVER's Q lies column by column


def project(x: Tensor, basis: Tensor, axis: int) -> Tensor:
    """A matrix x projected on span(basis) along `axis`, which has length `width`."""
    return basis @ (basis.T @ x) if axis == 0 else (x @ basis) @ basis.T


def grassmann_step(basis: Tensor, gram: Tensor, rate: float) -> Tensor:
    """U after one Riemannian step down ||G - G U U^T||^2 and QR; the scale of G does not matter.

    With M = G^T G the loss is tr(M) - tr(U^T M U). Its gradient is -2 M U, without its part in S.
    """
    wide, mass = basis.double(), gram.double()
    gradient = -2 * (mass @ wide) / mass.trace().clamp_min(1e-300)
    tangent = gradient - wide @ (wide.T @ gradient)
    return orthonormal(wide - rate * tangent)
