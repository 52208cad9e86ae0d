"""Three boards train the shipped keyword model in Flower, each on the clips of one speaker.

A board needs onnxruntime, and no torch. Its number is `partition-id` in its configuration.
"""

from pathlib import Path

from flower_client import FlowerBoard, client_app, read_arrays, write_arrays
from flower_strategy import RuleStrategy
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from edge.data.sources import NpzSettings, open_folder
from edge.onnx.session import load_model, write_adapter
from models.zoo import fsdd_path, package_path

SPEAKERS = ("theo", "nicolas", "yweweler")  # the model has not heard them
TRAINING = ("rounds", "local-steps", "learning-rate", "learning-rate-drop")
MODEL = package_path("keyword")


def open_board(context: Context) -> FlowerBoard:
    """The model and the clips of one board."""
    number = int(context.node_config["partition-id"]) % len(SPEAKERS)
    settings = NpzSettings({"features": "x", "target": "y"}, {"speaker": SPEAKERS[number]}, 255.0)
    loaded = load_model(MODEL)
    train, held_out = (
        open_folder(fsdd_path(split), loaded.package, settings) for split in ("train", "dev")
    )
    seed = int(context.run_config["seed"])
    return FlowerBoard(loaded, train, held_out, f"board-{number}", seed)


client = client_app(open_board)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; print the boards' median accuracy, and write the adapter."""
    run = context.run_config
    boards = dict.fromkeys(
        ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), len(SPEAKERS)
    )
    strategy = RuleStrategy(str(run["aggregation"]), int(run["byzantine"]), **boards)
    loaded = load_model(MODEL)
    result = strategy.start(
        grid,
        write_arrays(loaded.initial, loaded.package),
        num_rounds=int(run["rounds"]),
        train_config=ConfigRecord({name: run[name] for name in TRAINING}),
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}, loss {metrics['loss']:.3f}")
    if run["out"]:
        vector = read_arrays(result.arrays, loaded.package)
        write_adapter(Path(str(run["out"])), loaded.package, vector, int(run["rounds"]))
