"""The program on the board. The names in `__all__` are public; each is loaded at first use."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.config import DataConfig as DataConfig
    from edge.config import EvaluateConfig as EvaluateConfig
    from edge.config import NodeConfig as NodeConfig
    from edge.config import PredictConfig as PredictConfig
    from edge.config import TrainingConfig as TrainingConfig
    from edge.config import read_node_config as read_node_config
    from edge.data.sources import Label as Label
    from edge.data.sources import Sample as Sample
    from edge.data.sources import Source as Source
    from edge.errors import EdgeError as EdgeError
    from edge.onnx.session import Inference as Inference
    from edge.onnx.session import LoadedModel as LoadedModel
    from edge.onnx.session import load_model as load_model
    from edge.predict.predictor import Prediction as Prediction
    from edge.predict.predictor import Predictor as Predictor
    from edge.service import run_node as run_node
    from ternmesh_service.keyring import SecurityConfig as SecurityConfig
    from transports.link_config import LinkConfig as LinkConfig

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
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
