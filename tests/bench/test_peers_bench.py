import numpy as np
import pytest

from bench.demo import clips_of
from bench.peers import torch_weights
from edge.onnx.session import Inference, load_model
from models.zoo import package_path


def test_torch_has_the_shipped_model() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    from models.keyword import KeywordTransformer, add_keyword_lora

    weights = {name: torch.from_numpy(w.copy()) for name, w in torch_weights().items()}
    model = KeywordTransformer()
    model.load_state_dict({name: w for name, w in weights.items() if ".lora_" not in name})
    names = add_keyword_lora(model).names
    loaded, features = (
        load_model(package_path("keyword")),
        clips_of("dev", "theo").arrays["features"],
    )
    rng = np.random.default_rng(0)
    drawn = (loaded.initial + 0.1 * rng.standard_normal(loaded.initial.size)).astype(np.float32)
    tensors = loaded.package.split(drawn)
    assert set(names) == set(tensors) == {name for name in weights if ".lora_" in name}
    with torch.no_grad():
        for name, values in tensors.items():
            model.get_parameter(name).copy_(torch.from_numpy(values.copy()))
        logits = model(torch.from_numpy(features)).numpy()
    inference = Inference(loaded.folder, loaded.package)
    [wanted] = inference.predict({**tensors, "features": features}).values()
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
