"""The keyword fleet of `bench peers` in Flower's usual way: torch's Adam and DataLoader, FedAvg.

It runs in an environment that has flwr and torch.
"""

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from examples.voice.keyword import KeywordTransformer, add_keyword_lora, load_clips
from models.zoo import fsdd_path

SPEAKERS = ("theo", "nicolas", "yweweler")
BATCH, LORA = 32, ".lora_"
TRAINING = ("rounds", "local-steps", "learning-rate", "learning-rate-drop")
Tensors = Mapping[str, torch.Tensor]

client, server = ClientApp(), ServerApp()


def stored(context: Context) -> dict[str, torch.Tensor]:
    """The tensors of the base model and its first adapter by name."""
    with np.load(str(context.run_config["weights"]), allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def make_model(context: Context, message: Message) -> tuple[KeywordTransformer, Tensors]:
    """The model with the adapter of the message, and the tensors of the adapter by name."""
    model = KeywordTransformer()
    model.load_state_dict({n: tensor for n, tensor in stored(context).items() if LORA not in n})
    adapter = {name: model.get_parameter(name) for name in add_keyword_lora(model).names}
    with torch.no_grad():
        for name, values in message.content["arrays"].to_torch_state_dict().items():
            adapter[name].copy_(values)
    return model, adapter


def clips(context: Context, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """This board's clips and their digits."""
    return load_clips(fsdd_path(split), (SPEAKERS[int(context.node_config["partition-id"])],))


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """One round of Adam on this board's clips."""
    model, adapter = make_model(context, message)
    data, config = TensorDataset(*clips(context, "train")), message.content["config"]
    number = int(config["server-round"]) - 1
    rate = config["learning-rate"] * (1 - config["learning-rate-drop"] * number / config["rounds"])
    seed = (int(context.run_config["seed"]), number, int(context.node_config["partition-id"]))
    order = torch.Generator().manual_seed(int(np.random.default_rng(seed).integers(1 << 62)))
    batches = DataLoader(data, BATCH, shuffle=True, generator=order)
    optimizer = torch.optim.Adam(adapter.values(), rate)
    for _, (features, digits) in zip(range(config["local-steps"]), batches, strict=False):
        optimizer.zero_grad()
        loss = cross_entropy(model(features), digits)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    arrays = ArrayRecord({name: tensor.detach() for name, tensor in adapter.items()})
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(data)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on this board's clips that are held out."""
    model, _ = make_model(context, message)
    features, digits = clips(context, "dev")
    with torch.no_grad():
        hits = (model(features).argmax(1) == digits).double().mean().item()
    metrics = MetricRecord({"accuracy": hits, "num-examples": len(digits)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """All rounds of FedAvg; the adapter's tensors are written at the end."""
    run = context.run_config
    least = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    result = FedAvg(**dict.fromkeys(least, len(SPEAKERS))).start(
        grid,
        ArrayRecord({name: tensor for name, tensor in stored(context).items() if LORA in name}),
        num_rounds=int(run["rounds"]),
        train_config=ConfigRecord({name: run[name] for name in TRAINING}),
    )
    if run["out"]:
        np.savez(str(run["out"]), **{name: array.numpy() for name, array in result.arrays.items()})
