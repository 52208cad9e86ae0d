"""What crosses a boundary between two stages, and the interface of what makes it small."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bottleneck import codes
from models.bottleneck.codes import Code


@dataclass(frozen=True, slots=True)
class Context:
    """What a stage knows besides x: the shape of the micro-batch, and its tokens where they travel.

    `tokens` is int64 [batch, length].
    """

    batch: int
    length: int
    tokens: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """The bits of `wire` (float32 [words], whose gradient is the payload back) and packed ids."""

    wire: Tensor
    ids: Tensor | None = None

    @property
    def size(self) -> int:
        """Bytes on the way forward; on the way back it is that of `wire` alone."""
        return self.wire.numel() * codes.WORD + (0 if self.ids is None else self.ids.numel())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a pipeline engine sends."""
        return (self.wire,) if self.ids is None else (self.wire, self.ids)

    def to_bytes(self) -> bytes:
        """The payload for a bearer of bytes."""
        return b"".join(t.detach().cpu().numpy().tobytes() for t in self.tensors)


class Bottleneck(nn.Module):
    """A boundary: x [batch, length, width] to a payload and back, with autograd in both directions.

    A method changes `shrink` and `grow`; what it sends of a token is `latent` numbers in `code`.
    One that `sends_ids` gets the tokens on both sides. Each side of a boundary is on a rank of its
    own: `keep_sender` and `keep_receiver` drop what only the other one trains.
    """

    sends_ids = False

    def __init__(self, width: int, latent: int, code: Code, vocabulary: int) -> None:
        super().__init__()
        self.width, self.latent, self.code, self.vocabulary = width, latent, code, vocabulary

    def shrink(self, x: Tensor, context: Context) -> Tensor:
        """x [batch, length, width] to what is sent of it, [batch, length, latent]."""
        raise NotImplementedError

    def grow(self, z: Tensor, context: Context) -> Tensor:
        """What was sent to x again."""
        raise NotImplementedError

    def compress(self, x: Tensor, context: Context) -> Payload:
        """The payload of x, on the stage that sends."""
        wire = codes.compress(self.shrink(x, context), self.code)
        if not self.sends_ids or context.tokens is None:
            return Payload(wire)
        return Payload(wire, pack_ids(context.tokens, self.vocabulary))

    def expand(self, payload: Payload, context: Context) -> Tensor:
        """x again, on the stage that receives; BottleneckError."""
        shape = (context.batch, context.length, self.latent)
        return self.grow(codes.expand(payload.wire, self.code, shape), context)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Both sides in one process."""
        return self.expand(self.compress(x, context), context)

    def empty(self, batch: int, length: int, device: torch.device) -> Payload:
        """A payload of the size that all payloads of such a micro-batch have."""
        words = codes.words(self.code, batch * length, self.latent)
        wire = torch.zeros(words, device=device, requires_grad=True)
        if not self.sends_ids:
            return Payload(wire)
        tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
        return Payload(wire, pack_ids(tokens, self.vocabulary))

    def keep_sender(self) -> None:
        """Drop what only the receiver needs."""

    def keep_receiver(self) -> None:
        """Drop what only the sender needs."""


class Direct(Bottleneck):
    """No change but the code's: float32 is no compression; int8 and top-k are baselines."""

    def __init__(self, width: int, code: Code, vocabulary: int) -> None:
        super().__init__(width, width, code, vocabulary)

    def shrink(self, x: Tensor, context: Context) -> Tensor:  # noqa: ARG002
        """x itself."""
        return x

    def grow(self, z: Tensor, context: Context) -> Tensor:  # noqa: ARG002
        """z itself."""
        return z


def id_bits(vocabulary: int) -> int:
    """Bits of a token id."""
    return max(1, (vocabulary - 1).bit_length())


def pack_ids(tokens: Tensor, vocabulary: int) -> Tensor:
    """Token ids, int64 of any shape, as uint8 with as many bits each as the vocabulary needs."""
    bits = id_bits(vocabulary)
    flat = tokens.reshape(-1, 1)
    if bits == 8:
        return flat.flatten().to(torch.uint8)
    places = torch.arange(bits, device=tokens.device)
    stream = (flat >> places & 1).flatten()
    stream = nn.functional.pad(stream, (0, -len(stream) % 8)).view(-1, 8)
    return (stream << torch.arange(8, device=tokens.device)).sum(1).to(torch.uint8)


def unpack_ids(data: Tensor, batch: int, length: int, vocabulary: int) -> Tensor:
    """Token ids again, int64 [batch, length]; those beyond the vocabulary become its last."""
    bits = id_bits(vocabulary)
    if bits == 8:
        tokens = data.long()
    else:
        stream = (data.long().view(-1, 1) >> torch.arange(8, device=data.device) & 1).flatten()
        stream = stream[: batch * length * bits].view(-1, bits)
        tokens = (stream << torch.arange(bits, device=data.device)).sum(1)
    return tokens.view(batch, length).clamp_max(vocabulary - 1)
