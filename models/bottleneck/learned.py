"""A boundary with a learned basis (after MAPL, arXiv 2606.05484).

z = x A - e[t] and x' = z B^T + E[t]. The weights of the layers are not constrained; what A cannot
represent is lost. The sender learns A and e, the receiver B and E. A and B begin equal and stay
orthonormal, so no bases travel. Token ids travel, because both sides have a term for each token.
"""

from torch import Tensor, nn

from models.bottleneck.codes import Code
from models.bottleneck.payload import Bottleneck, BoundaryContext
from models.bottleneck.shared_subspace import make_basis

SMALL = 64  # width of the receiver's token table, before a linear layer widens it


class LearnedBasis(Bottleneck):
    """A and B [width, latent] on the Stiefel manifold: train them with `StiefelDescent`."""

    sends_ids = True

    def __init__(self, width: int, latent: int, code: Code, vocabulary: int, seed: int) -> None:
        super().__init__(width, latent, code, vocabulary)
        basis = make_basis(width, latent, seed)
        self.down: nn.Parameter | None = nn.Parameter(basis.clone())
        self.down_tokens: nn.Embedding | None = nn.Embedding(vocabulary, latent)
        self.up: nn.Parameter | None = nn.Parameter(basis)
        small = min(SMALL, width)
        wide = nn.Linear(small, width, bias=False)
        self.up_tokens: nn.Module | None = nn.Sequential(nn.Embedding(vocabulary, small), wide)
        for last in (self.down_tokens, wide):
            nn.init.zeros_(last.weight)

    def shrink(self, x: Tensor, context: BoundaryContext) -> Tensor:
        assert self.down is not None
        assert self.down_tokens is not None
        known: Tensor = self.down_tokens(context.tokens)
        return x @ self.down - known

    def grow(self, z: Tensor, context: BoundaryContext) -> Tensor:
        assert self.up is not None
        assert self.up_tokens is not None
        known: Tensor = self.up_tokens(context.tokens)
        return z @ self.up.T + known

    def orthonormal(self) -> list[nn.Parameter]:
        """Those of A and B that this side has."""
        return [basis for basis in (self.down, self.up) if basis is not None]

    def keep_sender(self) -> None:
        self.up = self.up_tokens = None

    def keep_receiver(self) -> None:
        self.down = self.down_tokens = None
