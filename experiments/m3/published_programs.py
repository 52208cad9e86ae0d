"""The host and the nodes of a published arm, as programs.

    python -m experiments.m3.published_programs JOB.json

In each round, a node trains, publishes its whole state and waits for the average. The host waits
for the states of all nodes and publishes their average. Every program can be killed and started
again: it continues with the newest average that it saved. Only this module imports paho-mqtt: a
message of M3a is larger than the 256 KiB that the MQTT transport of ternmesh carries.
"""

import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge.config import ADAPTER
from edge.data.sources import NpzSettings, open_folder
from edge.onnx.session import LoadedModel, TrainStep, load_model, write_adapter
from edge.trainer import AdamSettings, Trainer, round_rng
from experiments.m3.payload import PayloadError, decode, encode, mean
from experiments.m3.storage import (
    ExperimentError,
    RoundLog,
    State,
    Vector,
    load_state,
    read_json,
    save_state,
)
from host.config import RunConfig, plan_of
from ternmesh.model_package import ModelPackage
from ternmesh_cli.process import set_up_logging
from transports.base import HOST, TransportError
from transports.mqtt.settings import parse_url

JOB, ROUNDS, STATE, READY = "job.json", "rounds.json", "state.npz", "ready"
POLL_S = 0.5
CONNECT_S, PUBLISH_S = 30.0, 120.0
RESEND_S = 20.0  # a node that has waited this long publishes its state again

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """Settings of one program. `name` is that of a node, or HOST. Folders are absolute."""

    name: str
    arm: str
    codec: str
    url: str
    fleet: str
    nodes: tuple[str, ...]
    folder: str
    model: str  # folder of the model package
    data: str  # .npz of the node's samples
    run: RunConfig
    seed: int

    def topic(self, name: str) -> str:
        """Return the topic of the messages from a node or HOST; + stands for all nodes."""
        direction = "down" if name == HOST else f"up/{name}"
        return f"ternmesh-experiment/{self.fleet}/{self.arm}/{direction}"

    def file(self, name: str) -> Path:
        """Return the path of a file of this program."""
        return Path(self.folder) / name


def read_job(path: Path) -> Job:
    """Return the job in the file at `path`; ExperimentError."""
    content = read_json(path)
    if content is None:
        raise ExperimentError(f"{path} is missing: start the experiment again")
    content["run"] = RunConfig(**content["run"])
    content["nodes"] = tuple(content["nodes"])
    return Job(**content)


class MqttClient:
    """A connected client; `open_client` makes one."""

    def __init__(self, client: paho.Client, inbox: "queue.SimpleQueue[bytes]") -> None:
        self._client = client
        self._inbox = inbox

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1 and wait until the broker has acknowledged; TransportError."""
        message = self._client.publish(topic, payload, qos=1)
        message.wait_for_publish(PUBLISH_S)
        if not message.is_published():
            raise TransportError(
                f"the broker did not take a message of {len(payload)} bytes: does it limit their "
                "size (mosquitto: max_packet_size)?"
            )

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the next message, None after `timeout_s`."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None


@contextmanager
def open_client(url: str, identity: str, subscription: str) -> Iterator[MqttClient]:
    """Yield a client that is subscribed to a topic; TransportError."""
    address = parse_url(url)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    subscribed = threading.Event()

    def subscribe(client: paho.Client, *_: object) -> None:
        client.subscribe(subscription, qos=1)

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=identity)
    if address.tls:
        client.tls_set()
    if address.username is not None:
        client.username_pw_set(address.username, address.password)
    client.on_connect = subscribe  # also after a reconnect
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _userdata, message: inbox.put(bytes(message.payload))
    client.connect_async(address.host, address.port)
    client.loop_start()
    try:
        if not subscribed.wait(CONNECT_S):
            raise TransportError(f"cannot subscribe at the broker {address}: is it running?")
        yield MqttClient(client, inbox)
    finally:
        client.disconnect()
        client.loop_stop()


def run_host(job: Job, package: ModelPackage, average: State, client: MqttClient) -> None:
    """Host until the process is ended, from the saved `average` on."""
    log = RoundLog(job.file(ROUNDS))
    states: dict[str, Vector] = {}  # of this round, by node
    published_at = 0.0
    while True:
        received = _receive(job, package, client)
        if received is None or received[0] not in job.nodes:
            continue
        sender, state = received
        if state.version == average.version:
            states[sender] = state.vector
            if len(states) < len(job.nodes):
                continue
            average = State(state.version + 1, mean([states[node] for node in job.nodes]))
            states.clear()
            save_state(job.file(STATE), average)
        elif time.monotonic() < published_at + RESEND_S / 2:
            continue  # the sender missed the average, but it was published a moment ago
        message = encode(job.codec, package, HOST, average)
        log.record(average.version, len(message))
        client.publish(job.topic(HOST), message)
        published_at = time.monotonic()
        _log.info("average %d: %d bytes", average.version, len(message))


def run_node(job: Job, loaded: LoadedModel, average: State, client: MqttClient) -> None:
    """Take part until the last round is over, from the saved `average` on.

    A round that is repeated after a kill draws the same batches.
    """
    log, package = RoundLog(job.file(ROUNDS)), loaded.package
    data = open_folder(Path(job.data), package, NpzSettings({}, {}))
    step = TrainStep(loaded.folder, package)
    trainer = Trainer(step, data, package.batch, AdamSettings(), keep_moments=True)
    plan = plan_of(job.run, package.dimension)
    write_adapter(job.file(ADAPTER), package, average.vector, average.version)
    while average.version < job.run.rounds:
        rng = round_rng(job.seed, job.name, average.version)
        trainer.begin(average.version, average.vector, plan, rng)
        while trainer.step():
            pass
        trained = State(average.version, average.vector + trainer.delta())
        trainer.stop()
        message = encode(job.codec, package, job.name, trained)
        average = _exchange(job, package, client, trained.version, message)
        log.record(average.version, len(message))
        save_state(job.file(STATE), average)
        write_adapter(job.file(ADAPTER), package, average.vector, average.version)
        _log.info("round %d: sent %d bytes", average.version, len(message))


def _exchange(
    job: Job, package: ModelPackage, client: MqttClient, version: int, message: bytes
) -> State:
    """Publish a message until an average newer than `version` arrives; returns the average."""
    while True:
        client.publish(job.topic(job.name), message)
        deadline = time.monotonic() + RESEND_S
        while time.monotonic() < deadline:
            received = _receive(job, package, client)
            if received is not None and received[1].version > version:
                return received[1]
        _log.warning("no average for %.0f s: publishing again", RESEND_S)


def _receive(job: Job, package: ModelPackage, client: MqttClient) -> tuple[str, State] | None:
    """Return the sender and state of the next message, None if there is no valid one."""
    data = client.receive(POLL_S)
    if data is None:
        return None
    try:
        return decode(job.codec, package, data)
    except PayloadError as error:
        _log.warning("%s", error)
        return None


def main(path: str) -> None:
    """Run the program that the job file at `path` describes."""
    set_up_logging("INFO")
    job = read_job(Path(path))
    loaded = load_model(Path(job.model))
    average = load_state(job.file(STATE), loaded.initial)
    identity = f"ternmesh-{job.fleet}-{job.arm}-{job.name}"
    subscription = job.topic("+") if job.name == HOST else job.topic(HOST)
    with open_client(job.url, identity, subscription) as client:
        _log.info("%s starts with average %d", job.name, average.version)
        if job.name == HOST:
            job.file(READY).touch()
            run_host(job, loaded.package, average, client)
        else:
            run_node(job, loaded, average, client)


if __name__ == "__main__":
    main(sys.argv[1])
