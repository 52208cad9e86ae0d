import socket
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from bench.demo import clips_of
from bench.peers import CountingProxy, memory_mb, torch_weights, tree
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


def test_a_proxy_counts_what_it_passes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = CountingProxy(server.getsockname()[1])

        def answer() -> None:
            with server.accept()[0] as end:
                while piece := end.recv(1 << 16):
                    end.sendall(piece[: len(piece) // 2 * 2] * 2)

        threading.Thread(target=answer, daemon=True).start()
        with socket.create_connection(("127.0.0.1", proxy.port)) as near:
            near.sendall(b"12345678")
            got = b""
            while len(got) < 16:
                got += near.recv(100)
    assert proxy.bytes == {"up": 8, "down": 16}


def test_memory_is_that_of_a_process_and_what_it_has_started() -> None:
    child = "x = bytearray(b'1') * (60 << 20); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        assert len(tree(process.pid)) == 2
        own, child_mb = memory_mb(process.pid), memory_mb(tree(process.pid)[1].pid)
        process.communicate(b"\n")
    assert 60 < child_mb < own < child_mb + 30
