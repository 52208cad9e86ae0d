"""A host and two boards in one program: three rounds of the keyword model on two voices."""

import tempfile
import threading
from pathlib import Path

import numpy as np

import edge
import host
from models.zoo import fsdd_path, package_path
from transports.mqtt.embedded_broker import EmbeddedBroker  # any MQTT broker will do

SPEAKERS = ("theo", "nicolas")


def board(name: str, folder: Path, link: edge.LinkConfig) -> edge.NodeConfig:
    """The settings of one board; `node.toml` has the same names."""
    clips = edge.DataConfig(
        path=str(fsdd_path("train")),
        arrays={"features": "x", "target": "y"},  # what the file calls the tensors
        where={"speaker": name},
        divide_by=255,  # the file holds bytes
    )
    return edge.NodeConfig(
        name=name, state_dir=str(folder / name), model="keyword", link=link, data=clips
    )


def main() -> None:
    """Train, then predict with what was learned."""
    with tempfile.TemporaryDirectory() as path, EmbeddedBroker() as broker:
        folder, stop = Path(path), threading.Event()
        link = host.LinkConfig(url=broker.url, fleet="attic")
        run = host.RunConfig(rounds=3, min_peers=len(SPEAKERS))
        boards = [board(name, folder, link) for name in SPEAKERS]
        threads = [
            threading.Thread(target=edge.run_node, args=(config, stop), kwargs={"insecure": True})
            for config in boards
        ]
        for thread in threads:
            thread.start()
        hosted = host.HostConfig(str(folder / "host"), "keyword", link, run)
        host.run_host(hosted, stop, until_finished=True, insecure=True)
        stop.set()
        for thread in threads:
            thread.join()
        model = edge.load_model(package_path("keyword"))
        predictor = edge.Predictor(model, boards[0].adapter_path)  # also while the board learns
        clips = np.load(fsdd_path("dev"))
        features = {"features": clips["x"].astype(np.float32) / 255}
        probabilities = predictor.predict_now(features)
        print(f"accuracy {np.mean(probabilities.argmax(axis=1) == clips['y']):.3f}")
        print(f"the first clip: {predictor.predict(features)[0].label}")


if __name__ == "__main__":
    main()
