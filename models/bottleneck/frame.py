"""The subspace that all stages agree on (Protocol Models, arXiv 2506.01260).

Rows of everything that writes into the residual stream lie in S = span(U), so what is left of x
without the part that everybody knows, T_fixed[t] + PE, has k numbers.
"""

import torch
from torch import Tensor, nn


class Frame(nn.Module):
    """U [width, k] with orthonormal columns, T_fixed [vocabulary, width], PE [length, width].

    One frame serves the whole stage: layers, boundaries and optimiser hold the same object. `gram`
    [width, width] sums G^T G over the gradients G that boundaries see while `collecting`.
    """

    basis: Tensor
    table: Tensor
    gram: Tensor

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
        """k."""
        return self.basis.shape[1]

    def known(self, tokens: Tensor) -> Tensor:
        """T_fixed[t] + PE [batch, length, width]: what nobody needs to send."""
        fixed = nn.functional.embedding(tokens, self.table)
        positions = self.get_buffer("positions")
        return fixed if positions is None else fixed + positions[: tokens.shape[1]]

    def watch(self, x: Tensor) -> Tensor:
        """Add x's gradient to `gram` while collecting."""
        if self.collecting and x.requires_grad:
            x.register_hook(self._add)  # type: ignore[no-untyped-call]
        return x

    def _add(self, gradient: Tensor) -> None:
        rows = gradient.detach().reshape(-1, gradient.shape[-1]).float()
        self.gram += rows.T @ rows


def make_basis(width: int, rank: int, seed: int) -> Tensor:
    """U [width, rank]: the same on every rank with the same seed and the same library."""
    generator = torch.Generator().manual_seed(seed)
    return orthonormal(torch.randn(width, rank, generator=generator))


def make_table(vocabulary: int, width: int, std: float, seed: int) -> Tensor:
    """T_fixed [vocabulary, width]."""
    generator = torch.Generator().manual_seed(seed + 1)
    return std * torch.randn(vocabulary, width, generator=generator)


def orthonormal(matrix: Tensor) -> Tensor:
    """QR's Q in float64 precision, with the signs of R's diagonal made positive."""
    q, r = torch.linalg.qr(matrix.double())
    signed: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return signed.float()


def project(x: Tensor, basis: Tensor, axis: int) -> Tensor:
    """x [a, b] with its axis of length `width` projected on span(basis)."""
    return basis @ (basis.T @ x) if axis == 0 else (x @ basis) @ basis.T


def outside(x: Tensor, basis: Tensor, axis: int) -> float:
    """The share of x's norm that lies outside span(basis), computed in float64."""
    wide, frame = x.detach().double(), basis.double()
    # Float32 columns are orthonormal to 1e-8: made exact, so that only x is judged.
    exact = torch.linalg.qr(frame)[0]
    return float((wide - project(wide, exact, axis)).norm() / wide.norm().clamp_min(1e-300))


def grassmann_step(basis: Tensor, gram: Tensor, rate: float) -> Tensor:
    """U after one Riemannian step down ||G - G U U^T||^2 and QR; the step does not know G's scale.

    With M = G^T G the loss is tr(M) - tr(U^T M U); its gradient is -2 M U, less what lies in S.
    """
    wide, mass = basis.double(), gram.double()
    gradient = -2 * (mass @ wide) / mass.trace().clamp_min(1e-300)
    tangent = gradient - wide @ (wide.T @ gradient)
    return orthonormal(wide - rate * tangent)


def captured(basis: Tensor, gram: Tensor) -> float:
    """The share of the gradients' energy that lies in S."""
    return float((basis.T @ gram @ basis).trace() / gram.trace().clamp_min(1e-30))
