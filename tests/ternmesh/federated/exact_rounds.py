"""Seeded rounds of a combiner, hashed: `python -m tests.ternmesh.federated.exact_rounds ROUNDS`.

What the boards send is made of whole numbers by our own generator, so that all processors begin
with the same bytes. Boards report by turns, one lies from a round on until the guard goes back, one
copies another, one is away at times, and values are equal on purpose.
"""

import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np

from ternmesh.codec.encoder import zero_residual
from ternmesh.federated.aggregation import encode_update, read_chunks
from ternmesh.federated.combiner import Combiner, state_hash
from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.open_round import Count
from ternmesh.federated.registry import NodeRegistry, UpdateChain
from ternmesh.federated.robust import Update
from ternmesh.federated.rules import RULES, AggregationSettings, compose
from ternmesh.federated.state import ChainLink, RegisteredNode
from ternmesh.generator import derive_key, words
from ternmesh.plan import Plan, make_plan
from ternmesh.types import Vector
from ternmesh.wire.global_update import HASH_SIZE, GlobalUpdate, certify, write_global_update
from ternmesh.wire.update import MODEL_SIZE, read_chunk

DIMENSION, BOARDS, LIAR, COPY = 600, 9, 3, 5
MODEL, RUN = bytes(range(32)), b"run-id-8"
SETTINGS: dict[str, dict[str, Any]] = {
    "weighted_mean": {"guard": 0.05},
    "median": {"momentum": 0.3},
    "nnm+trimmed_mean": {"guard": 0.05},
    "nnm+median": {"memory": 0.0},
    "multi_krum": {},
    "krum": {"memory": 0.0},
}
SPARSE, DENSE = 0.4, 0.97  # zeros: sparse slices, and slices by codebook


def drawn(label: str, number: int, count: int) -> np.ndarray:
    """Whole numbers from -512 to 511."""
    key = derive_key(label, number.to_bytes(4, "little"))
    return (words(key, count) >> 22).astype(np.int64) - 512


def vector_of(board: int, version: int, lies: bool) -> Vector:
    """A board's delta: a common direction, a part of its own, and noise; many are equal."""
    common, own = drawn("common", 0, DIMENSION), drawn("own", board, DIMENSION)
    noise = drawn("noise", version * 64 + board, DIMENSION)
    mixed = 2 * common + own + 2 * noise
    if version % 3 == 0:
        mixed = mixed // 256 * 256  # ties
    if lies:
        mixed = -40 * common
    return (mixed * (1 + version % 5) / 2.0**20).astype(np.float32)


@cache
def sent(board: int, version: int, lies: bool, plan: Plan) -> tuple[bytes, ...]:
    return encode_update(vector_of(board, version, lies), MODEL, version, plan)[0]


def lines(name: str, rounds: int, zeros: float) -> Iterator[bytes]:
    """What each round makes: the chunks of the global update, and the hash of the state."""
    plan = make_plan(
        DIMENSION, rounds=0, local_steps=10, learning_rate=0.002, up_zeros=zeros, down_zeros=zeros,
        news_rounds=100,
    )  # fmt: skip
    settings = AggregationSettings(name, compose(name, RULES), byzantine=2, **SETTINGS[name])
    nodes = NodeRegistry((RegisteredNode(a, f"b{a}") for a in range(1, BOARDS + 1)), RegisteredNode)
    combiner = Combiner(
        plan=plan, settings=settings, model_hash=MODEL, run=RUN, nodes=nodes, mean=b"",
        standings=b"",
    )  # fmt: skip
    chain = UpdateChain(b"", (), 32)
    model_q24, residual = np.zeros(DIMENSION, np.int32), zero_residual(DIMENSION)
    spoiled, is_probed, newest = 0, False, b""
    for version in range(rounds):
        count, silent = Count(), []
        for board in range(BOARDS, 0, -1):
            if (board == 7 and version % 4 == 1) or version == 9:
                silent.append(board)
                continue
            lies = board == LIAR and version > 11
            chunks = sent(4 if board == COPY else board, version, lies, plan)
            if board == 2 and version % 5 == 0:
                chunks = chunks[1:]  # one is lost
            loss = 1.0 + (board % 3) / 8 + spoiled / 4 + (0.5 if lies else 0.0)
            probe = (board % 4 - 1.0 + 2 * lies) / 32 if is_probed else None
            count.updates.append(
                Update(
                    board, 40 * board, read_chunks(map(read_chunk, chunks), plan.up), 1,
                    Evaluation(loss, 0.5, probe=probe, staleness=version % 2), tuple(chunks),
                )
            )  # fmt: skip
        combined = combiner.combine(
            count, silent=silent, version=version, model_q24=model_q24, residual=residual,
            chain=chain,
        )  # fmt: skip
        made = combiner.encode(combined, version + 1, newest)
        model_q24, residual, is_probed = made.model_q24, made.residual, bool(made.probe)
        content = write_global_update(
            GlobalUpdate(
                version + 1, bytes(HASH_SIZE), MODEL[:MODEL_SIZE], False, 1000, (),
                made.chunks, made.probe, made.returns_to,
            )
        )  # fmt: skip
        newest = sha256(content).digest()
        chain.append(ChainLink(version + 1, newest, certify(content)))
        spoiled = 0 if made.returns_to is not None or version < 20 else spoiled + 1
        yield content + model_q24.astype("<i4").tobytes()
        yield state_hash(combiner, residual=residual, membership=version // 10)
        assert not combiner.aggregation.remark, combiner.aggregation.remark
        seen["probes"] += is_probed
        seen["returns"] += made.returns_to is not None


seen = {"probes": 0, "returns": 0}


def run(rounds: int) -> str:
    """The hash of all rules, and of the mean by codebook."""
    digest = sha256()
    for name, zeros in (*((name, SPARSE) for name in SETTINGS), ("weighted_mean", DENSE)):
        for line in lines(name, rounds, zeros):
            digest.update(line)
    assert min(seen.values()) > 0, seen
    return digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(run(int(sys.argv[1])))
