"""The program on the board. The names in `__all__` are public; each is loaded at first use."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.config import (
        DataConfig,
        EvaluateConfig,
        NodeConfig,
        PredictConfig,
        TrainingConfig,
        read_node_config,
    )
    from edge.data.sources import Label, Sample, Source
    from edge.errors import EdgeError
    from edge.onnx.session import Inference, LoadedModel, load_model
    from edge.predict.predictor import Prediction, Predictor
    from edge.service import run_node
    from ternmesh_service.keyring import SecurityConfig
    from transports.link_config import LinkConfig

_NAMES = {
    "edge.config": "DataConfig EvaluateConfig NodeConfig PredictConfig TrainingConfig "
    "read_node_config",
    "edge.data.sources": "Label Sample Source",
    "edge.errors": "EdgeError",
    "edge.onnx.session": "Inference LoadedModel load_model",
    "edge.predict.predictor": "Prediction Predictor",
    "edge.service": "run_node",
    "transports.link_config": "LinkConfig",
    "ternmesh_service.keyring": "SecurityConfig",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [
    "DataConfig",
    "EdgeError",
    "EvaluateConfig",
    "Inference",
    "Label",
    "LinkConfig",
    "LoadedModel",
    "NodeConfig",
    "PredictConfig",
    "Prediction",
    "Predictor",
    "Sample",
    "SecurityConfig",
    "Source",
    "TrainingConfig",
    "load_model",
    "read_node_config",
    "run_node",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
