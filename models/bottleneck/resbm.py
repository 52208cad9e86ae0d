"""The residual bottleneck (ResBM, arXiv 2604.11947): z = Enc(x) + x[:b], x' = Dec(z) + pad(z).

Only b = `latent` of the channels cross the boundary directly; Dec computes the others from them.
Enc and Dec are trained with the stages, so a model should have them from the first step.
"""

from torch import Tensor, nn

from models.bottleneck.codes import Code
from models.bottleneck.payload import Bottleneck, BoundaryContext

HIDDEN_MIN = 64
INIT_STD = 0.01


class ResidualBottleneck(Bottleneck):
    def __init__(self, width: int, latent: int, code: Code, vocabulary: int) -> None:
        super().__init__(width, latent, code, vocabulary)
        hidden = max(4 * latent, HIDDEN_MIN)
        self.encoder: nn.Module | None = _network(width, hidden, latent)
        self.decoder: nn.Module | None = _network(latent, hidden, width)

    def shrink(self, x: Tensor, context: BoundaryContext) -> Tensor:  # noqa: ARG002
        assert self.encoder is not None
        encoded: Tensor = self.encoder(x)
        return encoded + x[..., : self.latent]

    def grow(self, z: Tensor, context: BoundaryContext) -> Tensor:  # noqa: ARG002
        assert self.decoder is not None
        decoded: Tensor = self.decoder(z)
        return decoded + nn.functional.pad(z, (0, self.width - self.latent))

    def keep_sender(self) -> None:
        self.decoder = None

    def keep_receiver(self) -> None:
        self.encoder = None


def _network(width: int, hidden: int, out: int) -> nn.Sequential:
    first, last = nn.Linear(width, hidden), nn.Linear(hidden, out)
    for layer in (first, last):
        nn.init.normal_(layer.weight, std=INIT_STD)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.SiLU(), last)
