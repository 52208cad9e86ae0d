"""The predictions of a running node: its socket, its MQTT topics, and its live samples."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from edge.config import NodeConfig
from edge.node import Node
from edge.onnx.session import LoadedModel
from edge.predict.messages import BUSY, Answer
from edge.predict.predictor import Predictor
from edge.predict.server import Asker, PredictionServer
from ternmesh_service.status import PredictStatus
from transports.link_config import link_settings
from transports.mqtt.settings import INBOUND_MESSAGE_MAX
from transports.mqtt.topics import TopicClient, same_broker

Status = Callable[[], PredictStatus]


@contextmanager
def predicting(config: NodeConfig, loaded: LoadedModel, node: Node) -> Iterator[Status]:
    """Do what `[predict]` asks for, of a node that has started; ControlError.

    Yields what `ternmesh status` shows of it.
    """
    settings = config.predict
    predictor = Predictor(
        loaded,
        config.adapter_path,
        threads=config.training.threads,
        threshold=lambda: node.management.settings.get("threshold", settings.threshold),
    )
    server = PredictionServer(config.predict_path, predictor)
    topics = None if settings.topic is None else _Topics(config, server)
    with ExitStack() as stack:
        server.start()
        stack.callback(server.close)
        if topics is not None:
            topics.open()
            stack.callback(topics.close)
        if (feed := node.data.feed) is not None:
            feed.predict = server.predict_live
            feed.buffer.certainty = predictor.certainty
        yield lambda: replace(server.status(), topics=None if topics is None else topics.status())


class _Topics(TopicClient):
    """Requests come on ../request; answers go to ../answer, live predictions to ../live."""

    def __init__(self, config: NodeConfig, server: PredictionServer) -> None:
        link = link_settings(config.link, config.name)
        self._prefix = f"{config.predict.topic}/{config.name}"
        self._server = server
        self._refused = self._unsent = 0
        self._asker = Asker(partial(self._send, "answer"))
        server.on_live = partial(self._send, "live")
        super().__init__(
            same_broker(link, topics=(f"{self._prefix}/request",), payload_max=INBOUND_MESSAGE_MAX)
        )

    def _numbers(self) -> dict[str, int]:
        """Also the requests that were told to try later, and the answers that no broker took."""
        return {**super()._numbers(), "refused": self._refused, "unsent": self._unsent}

    def _take(self, topic: str, payload: bytes) -> None:
        super()._take(topic, payload)
        for _, line in self.drain():
            if not self._server.post(line, self._asker):
                self._refused += 1
                self._asker.send({"id": None, "error": BUSY, "busy": True})

    def _send(self, kind: str, content: Answer) -> None:
        self._unsent += not self.publish(f"{self._prefix}/{kind}", json.dumps(content).encode())
