"""A source that reads rows from a sensor on a serial port."""

from edge.data.live.options import SerialOptions
from edge.data.live.rows import READ_MAX, LineSplitter, RowSource
from ternmesh.model_package import ModelPackage
from transports.serial_lora.port import SerialPort
from transports.serial_lora.send_queue import Waker


class SerialSource(RowSource):
    """Lines from a serial port, which may be unplugged and come back."""

    def __init__(self, options: SerialOptions, package: ModelPackage) -> None:
        super().__init__(options, package)
        self._options = options
        self._waker: Waker | None = None
        self._port: SerialPort | None = None

    def close(self) -> None:
        super().close()
        for part in (self._port, self._waker):
            if part is not None:
                part.close()
        self._port = self._waker = None

    def _open(self, _now: float) -> None:
        self._waker = Waker()
        own = self._options
        self._port = SerialPort(own.port, own.baud, 0.0, self._waker, (own.dtr, own.rts))
        self._splitter = LineSplitter(self.left_out, skips=True)

    def _lines(self, _now: float) -> list[bytes]:
        assert self._port is not None
        lines: list[bytes] = []
        left = READ_MAX
        while left > 0 and (data := self._port.read(0.0)):
            left -= len(data)
            lines += self._splitter.take(data)
        return lines
