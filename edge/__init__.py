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

_MODULES = {
    "DataConfig": "edge.config",
    "EvaluateConfig": "edge.config",
    "NodeConfig": "edge.config",
    "PredictConfig": "edge.config",
    "TrainingConfig": "edge.config",
    "read_node_config": "edge.config",
    "Label": "edge.data.sources",
    "Sample": "edge.data.sources",
    "Source": "edge.data.sources",
    "EdgeError": "edge.errors",
    "Inference": "edge.onnx.session",
    "LoadedModel": "edge.onnx.session",
    "load_model": "edge.onnx.session",
    "Prediction": "edge.predict.predictor",
    "Predictor": "edge.predict.predictor",
    "run_node": "edge.service",
    "LinkConfig": "transports.link_config",
    "SecurityConfig": "ternmesh_service.keyring",
}
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
