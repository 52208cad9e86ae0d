"""A basis that each boundary learns (after MAPL, arXiv 2606.05484).

z = x A - e[t] and x' = z B^T + E[t]. The weights stay free; what A loses, training must do
without. The two sides learn their own A and B, which begin equal and stay orthonormal, so nothing
but payloads travels. Ids travel too: the receiver adds what it has learned of a token itself.
"""

from torch import Tensor, nn

from models.bottleneck.codes import Code
from models.bottleneck.frame import make_basis
from models.bottleneck.payload import Bottleneck, Context

SMALL = 64  # numbers of a token before they are widened


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

    def shrink(self, x: Tensor, context: Context) -> Tensor:
        """x A - e[t]."""
        assert self.down is not None
        assert self.down_tokens is not None
        known: Tensor = self.down_tokens(context.tokens)
        return x @ self.down - known

    def grow(self, z: Tensor, context: Context) -> Tensor:
        """z B^T + E[t]."""
        assert self.up is not None
        assert self.up_tokens is not None
        known: Tensor = self.up_tokens(context.tokens)
        return z @ self.up.T + known

    def orthonormal(self) -> list[nn.Parameter]:
        """The parameters that stay orthonormal."""
        return [basis for basis in (self.down, self.up) if basis is not None]

    def keep_sender(self) -> None:
        """Drop B and E."""
        self.up = self.up_tokens = None

    def keep_receiver(self) -> None:
        """Drop A and e."""
        self.down = self.down_tokens = None
