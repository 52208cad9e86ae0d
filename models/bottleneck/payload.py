"""The interface of boundaries between two stages, and packed token ids.

A payload is the tensors that cross: coded activations (float32 [words], whose bits are the coded
bytes), and packed ids where both sides need the tokens. Backward, only the gradient of the first
travels; `Bottleneck.sizes` has its bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bottleneck import codes
from models.bottleneck.codes import Code


@dataclass(frozen=True, slots=True)
class BoundaryContext:
    """The shape of a micro-batch, and its tokens on stages that have them."""

    batch: int
    length: int
    tokens: Tensor | None = None  # int64 [batch, length]


class Bottleneck(nn.Module):
    """A boundary: x [batch, length, width] to a payload and back; gradients travel the other way.

    Subclasses override `shrink` and `grow`. A token becomes `latent` numbers, coded by `code`, and
    their gradients by `back`, which takes no more bytes.
    Where `sends_ids` is set, both sides have the tokens. The two sides are on different ranks:
    `keep_sender` and `keep_receiver` drop the parameters of the other side.
    """

    sends_ids = False

    def __init__(self, width: int, latent: int, code: Code, vocabulary: int) -> None:
        super().__init__()
        self.width = width
        self.latent = latent
        self.code = code
        self.back = code
        self.vocabulary = vocabulary

    def shrink(self, x: Tensor, context: BoundaryContext) -> Tensor:
        """x [batch, length, width] to z [batch, length, latent]."""
        raise NotImplementedError

    def grow(self, z: Tensor, context: BoundaryContext) -> Tensor:
        """z [batch, length, latent] to x [batch, length, width]."""
        raise NotImplementedError

    def compress(self, x: Tensor, context: BoundaryContext) -> tuple[Tensor, ...]:
        """The payload of x [batch, length, width]; the sending stage calls it."""
        wire = codes.compress(self.shrink(x, context), self.code, self.back)
        if not self.sends_ids or context.tokens is None:
            return (wire,)
        return wire, pack_ids(context.tokens, self.vocabulary)

    def expand(self, wire: Tensor, context: BoundaryContext) -> Tensor:
        """x [batch, length, width]; the receiving stage calls it. BottleneckError."""
        shape = (context.batch, context.length, self.latent)
        return self.grow(codes.expand(wire, self.code, self.back, shape), context)

    def forward(self, x: Tensor, context: BoundaryContext) -> Tensor:
        """Both sides in one process."""
        return self.expand(self.compress(x, context)[0], context)

    def words(self, batch: int, length: int) -> int:
        """float32 words of coded activations."""
        return codes.words(self.code, batch * length, self.latent)

    def sizes(self, batch: int, length: int) -> tuple[int, int]:
        """Bytes of a micro-batch [batch, length]: of its payload forward, and of that back."""
        tokens = batch * length
        ids = -(-tokens * id_bits(self.vocabulary) // 8) if self.sends_ids else 0
        back = codes.words(self.back, tokens, self.latent)
        return codes.WORD * self.words(batch, length) + ids, codes.WORD * back

    def keep_sender(self) -> None:
        """Drop the parameters that only the receiver needs."""

    def keep_receiver(self) -> None:
        """Drop the parameters that only the sender needs."""


class Direct(Bottleneck):
    """Only the code changes x. Floats compress nothing more; int8 is a baseline."""

    def __init__(self, width: int, code: Code, vocabulary: int) -> None:
        super().__init__(width, width, code, vocabulary)

    def shrink(self, x: Tensor, context: BoundaryContext) -> Tensor:  # noqa: ARG002
        return x

    def grow(self, z: Tensor, context: BoundaryContext) -> Tensor:  # noqa: ARG002
        return z


def id_bits(vocabulary: int) -> int:
    return max(1, (vocabulary - 1).bit_length())


def pack_ids(tokens: Tensor, vocabulary: int) -> Tensor:
    """Token ids (int64, any shape) as uint8; each takes `id_bits` bits, lowest bit first."""
    bits = id_bits(vocabulary)
    flat = tokens.reshape(-1, 1)
    if bits == 8:
        return flat.flatten().to(torch.uint8)
    places = torch.arange(bits, device=tokens.device)
    stream = (flat >> places & 1).flatten()
    stream = nn.functional.pad(stream, (0, -len(stream) % 8)).view(-1, 8)
    return (stream << torch.arange(8, device=tokens.device)).sum(1).to(torch.uint8)


def unpack_ids(data: Tensor, batch: int, length: int, vocabulary: int) -> Tensor:
    """Packed ids to int64 [batch, length]; ids beyond the vocabulary become the last one."""
    bits = id_bits(vocabulary)
    if bits == 8:
        tokens = data.long()
    else:
        stream = (data.long().view(-1, 1) >> torch.arange(8, device=data.device) & 1).flatten()
        stream = stream[: batch * length * bits].view(-1, bits)
        tokens = (stream << torch.arange(bits, device=data.device)).sum(1)
    return tokens.view(batch, length).clamp_max(vocabulary - 1)
