"""LoRA adapters in the files of Hugging Face PEFT, out and in.

Names, shapes and the scale come from the model package: forward.onnx has s in `x A (s B)`. PEFT
has A and B transposed, and the scale in its configuration; here it goes into B (alpha = rank).
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ternmesh.extras import installed

with installed("peft", "PEFT files need the packages onnx and safetensors"):
    import onnx
    from onnx import numpy_helper
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

from ternmesh.errors import ModelPackageError
from ternmesh.model_package import FORWARD, ModelPackage
from ternmesh.types import Vector

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CONFIG_MAX = 1 << 20  # bytes
PREFIX = "base_model.model."  # of each tensor in a PEFT file
DOWN, UP = ".lora_A", ".lora_B"
_PEFT = {DOWN: ".lora_A.weight", UP: ".lora_B.weight"}
# Settings that do not change the sum, whatever they are; all others must be empty or in `_PLAIN`
_HARMLESS = frozenset((
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "modules_to_save", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
    "target_modules", "task_type", "use_rslora",
))  # fmt: skip
# Other ways to begin change the weights of the base model, too
_PLAIN: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


def write_peft(folder: Path, package: ModelPackage, package_folder: Path, vector: Vector) -> None:
    """Write the adapter `vector` (float32, [D]) as PEFT files into a new folder.

    ModelPackageError where the adapter is no LoRA with both A and B.
    """
    scales = _scales(package, package_folder)
    tensors: dict[str, Any] = {}
    ranks: dict[str, int] = {}
    saved: dict[str, None] = {}
    for name, values in package.split(vector).items():
        if name.endswith((DOWN, UP)):
            layer, kind = name[: -len(DOWN)], name[-len(DOWN) :]
            ranks[layer] = values.shape[1] if kind == DOWN else values.shape[0]
            scaled = values if kind == DOWN else np.float32(scales[layer]) * values
            tensors[PREFIX + layer + _PEFT[kind]] = np.ascontiguousarray(scaled.T)
        else:  # a whole module that is trained, such as a head
            saved[name.rpartition(".")[0]] = None
            tensors[PREFIX + name] = np.ascontiguousarray(values)
    rank = max(ranks.values())
    # A name alone would also stand for all layers whose names end so
    others = {f"^{re.escape(layer)}": own for layer, own in ranks.items() if own != rank}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "task_type": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": "|".join(map(re.escape, sorted(ranks))),
        "modules_to_save": list(saved) or None,
    }
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read_peft(folder: Path, package: ModelPackage, package_folder: Path) -> Vector:
    """The adapter vector of PEFT files for this package; ModelPackageError.

    They must have exactly its tensors. The sum that PEFT computes is kept: its scale goes into B.
    """
    scales = _scales(package, package_folder)
    theirs = _their_scales(folder, package)
    try:
        found = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError, TypeError, KeyError) as error:  # also types numpy lacks
        raise ModelPackageError(
            f"{folder / WEIGHTS} cannot be read (a file .bin must be saved again): {error}"
        ) from error
    parts = []
    for spec in package.adapter:
        is_factor = spec.name.endswith((DOWN, UP))
        layer, kind = spec.name[: -len(DOWN)], spec.name[-len(DOWN) :]
        key = PREFIX + (layer + _PEFT[kind] if is_factor else spec.name)
        shape = spec.shape[::-1] if is_factor else spec.shape
        if key not in found or found[key].shape != shape:
            held = "no such tensor" if key not in found else f"it is {found[key].shape} there"
            raise ModelPackageError(f"{folder / WEIGHTS}: {key} must be {shape}, and {held}")
        values = found.pop(key).astype(np.float32)
        if kind == UP and is_factor:
            values = values * np.float32(theirs[layer] / scales[layer])
        parts.append((values.T if is_factor else values).reshape(-1))
    if found:
        raise ModelPackageError(
            f"{folder / WEIGHTS} has {min(found)}, which {package.name} does not train"
        )
    vector: Vector = np.concatenate(parts)
    if not np.isfinite(vector).all():
        raise ModelPackageError(f"{folder / WEIGHTS} has NaN or infinity")
    return vector


def _their_scales(folder: Path, package: ModelPackage) -> dict[str, float]:
    """The scale of each layer in a PEFT configuration; ModelPackageError for no plain LoRA."""
    path = folder / CONFIG
    ranks = {s.name[: -len(UP)]: s.shape[0] for s in package.adapter if s.name.endswith(UP)}
    try:
        if path.stat().st_size > CONFIG_MAX:
            raise ValueError("it is too long")
        config = json.loads(path.read_text(encoding="utf-8-sig"))
        wide = {layer: float(_alpha(layer, config)) for layer in ranks}
        odd = {
            key: value
            for key, value in config.items()
            if (value not in _PLAIN[key] if key in _PLAIN else value and key not in _HARMLESS)
        }
        power = 0.5 if config.get("use_rslora") else 1.0
    except OSError as error:
        raise ModelPackageError(
            f"{path} cannot be read ({error.strerror}): give the folder that PEFT has "
            "saved, of a named adapter the one in it"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, re.error) as error:
        raise ModelPackageError(f"{path} is no configuration of a LoRA: {error!r}") from error
    if odd:
        raise ModelPackageError(f"{path} has {odd}: ternmesh has only the plain LoRA")
    return {layer: wide[layer] / rank**power for layer, rank in ranks.items()}


def _alpha(layer: str, config: dict[str, Any]) -> Any:
    """The alpha of a layer; a pattern is for all layers whose names end so, as in PEFT."""
    patterns = config.get("alpha_pattern") or {}
    fits = (key for key in patterns if re.match(rf"(.*\.)?({key})$", layer))
    key = next(fits, None)
    return config["lora_alpha"] if key is None else patterns[key]


def _scales(package: ModelPackage, folder: Path) -> dict[str, float]:
    """The s of each layer; ModelPackageError where the adapter is no LoRA."""
    names = {spec.name for spec in package.adapter}
    layers = {name[: -len(UP)] for name in names if name.endswith(UP)}
    if not layers or {name[: -len(DOWN)] for name in names if name.endswith(DOWN)} != layers:
        raise ModelPackageError(
            f"the adapter of {package.name} is no LoRA with A and B: PEFT has no form for it"
        )
    graph = onnx.load(folder / FORWARD).graph
    constants = {item.name: item for item in graph.initializer}
    scales = dict.fromkeys(layers, 1.0)
    for node in graph.node:
        for name in node.input:
            layer = name[: -len(UP)]
            if name.endswith(UP) and layer in layers and node.op_type == "Mul":
                [other] = [item for item in node.input if item != name]
                scales[layer] = float(numpy_helper.to_array(constants[other]))
    return scales
