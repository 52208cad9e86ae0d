"""A source that takes rows and labels from topics of an MQTT broker."""

import json
from collections import deque
from dataclasses import replace

from edge.data.live.options import MqttOptions
from edge.data.live.rows import LINE_SHOWN, READ_MAX, RowMapper, RowSource
from edge.data.sources import Label, Sample, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import LiveStatus
from transports.mqtt.topics import TopicClient, TopicSettings, check_topic

TOPICS_MAX = 64  # whose rows are kept apart


class MqttSource(RowSource):
    """Rows, for each topic apart; labels `{"key": .., "label": ..}`, for rows that had a key."""

    def __init__(self, options: MqttOptions, package: ModelPackage) -> None:
        super().__init__(options, package)
        topics = tuple(filter(None, (options.topic, options.label_topic)))
        try:
            check_topic(options.label_topic or "none")  # no wildcards: its messages are no rows
            self._settings = TopicSettings(
                options.url, topics=topics, ca_file=options.ca_file, payload_max=READ_MAX
            )
        except ValueError as error:
            raise DataError(str(error)) from error
        self._label_topic = options.label_topic
        self._package = package
        self._client: TopicClient | None = None
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._mappers: dict[str, RowMapper] = {}

    def close(self) -> None:
        super().close()
        if self._client is not None:
            self._client.close()
        self._client = None

    def status(self) -> LiveStatus:
        status, client = super().status(), self._client
        if client is None:
            return status
        waited = f"message that came while {self._settings.arrivals_max} others waited"
        too_long = f"message over {READ_MAX} bytes: send fewer rows in each"
        lost = {waited: client.dropped, too_long: client.too_long}
        left_out = {**status.left_out, **{why: count for why, count in lost.items() if count}}
        return replace(status, broker=client.status(), left_out=left_out)

    def _open(self, _now: float) -> None:
        self._arrived.clear()
        self._client = TopicClient(self._settings)
        self._client.open()

    def _read(self, _now: float) -> list[Sample | Label]:
        assert self._client is not None
        items: list[Sample | Label] = []
        self._arrived = self._arrived or deque(self._client.drain())
        left = READ_MAX
        while self._arrived and left > 0:
            topic, payload = self._arrived.popleft()
            left -= len(payload)
            if topic == self._label_topic:
                items += self._label(payload)
            else:
                items += self._rows(topic, payload)
        return items

    def _rows(self, topic: str, payload: bytes) -> list[Sample | Label]:
        if not payload.strip():
            self.left_out.add("message without a row", topic)
        if topic not in self._mappers and len(self._mappers) < TOPICS_MAX:
            self._mappers[topic] = self._new_mapper()
        if (mapper := self._mappers.get(topic)) is None:
            self.left_out.add(f"message of a topic beyond the first {TOPICS_MAX}", topic)
            return []
        items = [item for line in payload.splitlines() for item in mapper.take(line)]
        mapper.reader.end()
        return items

    def _label(self, payload: bytes) -> list[Label]:
        try:
            content = json.loads(payload)
            return [Label(str(content["key"]), label_arrays(self._package, content["label"]))]
        except (ValueError, TypeError, LookupError, RecursionError, DataError):
            reason = 'no {"key": .., "label": ..} of this model'
            self.left_out.add(reason, payload[:LINE_SHOWN].decode(errors="replace"))
            return []
