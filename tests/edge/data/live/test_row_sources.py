"""Rows from a CSV file, a serial port and a broker, with their faults."""

import json
import os
import pty
import tty
from contextlib import suppress
from typing import Any

import pytest

from edge.config import read_node_config
from edge.data.sources import Label, Sample
from edge.errors import DataError
from ternmesh.config import ConfigError
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import LiveStatus, ask_status
from tests.edge.fleet import running
from transports.base import TransportError

COLUMNS = ["1", "2"]


def keys(items) -> list[object]:
    """The inputs of samples, as a list of numbers."""
    return [item.inputs["x"].tolist() for item in items if isinstance(item, Sample)]


@pytest.fixture
def csv(source, package, tmp_path):
    path = tmp_path / "log.csv"

    def make(text: str | None = "a,b\n1,2\n", **options):
        if text is not None:
            path.write_text(text)
        columns = options.pop("columns", ["a", "b"])
        return path, source("csv", package(2), path=str(path), columns=columns, **options)

    return make


def add(path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_rows_that_are_added_to_a_file(csv) -> None:
    path, source = csv()
    assert source.poll(0.0) == []  # What was there before is not read.
    add(path, "3,4\n5,")
    assert keys(source.poll(1.0)) == [[3.0, 4.0]]
    add(path, "6\nbad,7\n")
    assert keys(source.poll(2.0)) == [[5.0, 6.0]]
    assert source.status() == LiveStatus(
        open=True, left_out={"no number in column a": 1}, first={"no number in column a": "'bad,7'"}
    )


@pytest.mark.parametrize("is_empty_first", [False, True])
@pytest.mark.parametrize("mark", ["sep=;", '"sep=;"', "\ufeffSEP=;\r", "sep=\t", "sep=,"])
def test_a_file_that_names_its_separator_as_excel_does(csv, mark, is_empty_first) -> None:
    separator = next(each for each in ";\t," if each in mark)
    head = f"{mark}\na{separator}b\n"
    path, source = csv("" if is_empty_first else f"{head}9{separator}9\n")
    assert source.poll(0.0) == []
    add(path, f"{head if is_empty_first else ''}1{separator}2\n")
    assert keys(source.poll(1.0)) == [[1.0, 2.0]]
    assert not source.status().left_out


def test_a_file_that_is_replaced_or_emptied(csv) -> None:
    path, source = csv("b,a\n1,2")
    assert source.poll(0.0) == []
    add(path, "3\n4,3\n")  # the end of half a line is left out
    os.replace(path, path.with_suffix(".old"))
    path.write_text("b,a\n5,6\n7,8\n9,10\n")
    assert keys(source.poll(1.0)) == [[3.0, 4.0]]  # the end of the old file
    source.poll(2.0)
    assert keys(source.poll(3.0)) == [[6.0, 5.0], [8.0, 7.0], [10.0, 9.0]]
    path.write_text("7,8\n")
    source.poll(4.0)
    assert keys(source.poll(5.0)) == [[8.0, 7.0]]


def test_a_file_that_comes_later_is_read_from_its_beginning(csv) -> None:
    path, source = csv(None)
    with pytest.raises(FileNotFoundError):
        source.poll(0.0)
    path.write_text("a,b\n1,2\n3,4\n")
    assert keys(source.poll(100.0)) == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nuls_of_a_power_cut_are_skipped_at_once(csv, is_replaced) -> None:
    path, source = csv()
    source.poll(0.0)
    add(path, "3,4\n5,")
    os.truncate(path, 60 << 20)
    source.poll(1.0)
    assert not source.status().behind
    if is_replaced:
        path.unlink()
    add(path, "a,b\n6,7\n" + 9000 * "8,9\n")
    assert keys(item for now in (2.0, 3.0, 4.0) for item in source.poll(now))[0] == [6.0, 7.0]
    assert source.status().behind > 10_000
    assert source.status().left_out["run of NUL bytes, as a power cut leaves them"] == 1


def test_a_file_goes_on_where_this_process_left_it(csv) -> None:
    path, source = csv(rate_max=1.0)
    source.poll(0.0)
    add(path, "3,4\n5,6\n7,")
    assert keys(source.poll(1.0)) == [[3.0, 4.0]]  # the next one waits
    source.close()
    add(path, "8\n")
    assert keys(source.poll(2.0)) == [[5.0, 6.0]]
    source.close()
    _, opened_anew = csv(None)
    assert keys(opened_anew.poll(2.0)) == [[7.0, 8.0]]
    path.rename(path.with_suffix(".away"))
    with pytest.raises(FileNotFoundError):
        opened_anew.poll(3.0)
    path.with_suffix(".away").rename(path)
    add(path, "9,0\n")
    assert keys(opened_anew.poll(99.0)) == [[9.0, 0.0]]
    path.rename(path.with_suffix(".1"))
    path.write_text("a,b\n1,2\n3,4\n5,6\n7,8\n9,0\n1,2\n")  # another one that begins so
    opened_anew.poll(100.0)
    assert len(keys(opened_anew.poll(101.0))) == 6


def test_many_rows_wait_for_rate_max(csv) -> None:
    path, source = csv(rate_max=5.0)
    source.poll(0.0)
    add(path, "1,2\n" * 22)
    polls = [len(source.poll(1.0 + second)) for second in range(6)]
    assert polls == [5, 5, 5, 5, 2, 0]
    assert source.status().left_out == {}


def test_a_serial_sensor(source, package) -> None:
    main, port = pty.openpty()
    tty.setraw(main)
    try:
        sensor = source("serial", package(2), port=os.ttyname(port), columns=COLUMNS, rate_max=100)
        assert sensor.poll(0.0) == []
        os.write(main, b"9,9\r\n1,2\r\n\xff\xfe,4\r\n3,")
        assert keys(sensor.poll(1.0)) == [[1.0, 2.0]]  # The first line may be half a line.
        os.write(main, b"4\r\n")
        assert keys(sensor.poll(2.0)) == [[3.0, 4.0]]
        assert sum(sensor.status().left_out.values()) == 1
    finally:
        os.close(main)
        os.close(port)
    with pytest.raises(TransportError, match="unplugged"):
        sensor.poll(3.0)
    assert not sensor.status().open
    assert sensor.poll(3.1) == []
    before = len(os.listdir("/proc/self/fd"))
    for second in (10.0, 20.0, 40.0):
        with pytest.raises(TransportError, match=r"no such device|not a serial port"):
            sensor.poll(second)
    assert len(os.listdir("/proc/self/fd")) == before


def test_rows_and_labels_of_a_broker(source, package, mosquitto, eventually) -> None:
    topics = pytest.importorskip("transports.mqtt.topics")
    broker = {"url": mosquitto.url, "topic": "hall/+", "label_topic": "hall-labels"}
    sensor = source("mqtt", package(2), columns=["t", "u"], **broker)
    items = list(sensor.poll(0.0))
    person = topics.TopicClient(topics.TopicSettings(mosquitto.url))
    person.open()
    try:
        eventually(lambda: person.connected and sensor.status().broker.connected)
        row = json.dumps({"t": 1, "u": 2.5, "key": "first"})
        person.publish("hall/air", f"{row}\nt,u\n3,4\n".encode())
        for payload in (b'{"key": "first", "label": "yes"}', b'{"key": 1}', b"\xff", b"[]"):
            person.publish("hall-labels", payload)
        person.publish("hall-labels", b'{"key": "first", "label": "perhaps"}')
        person.publish("hall/air", b"t,u\n" + 5000 * b"1,2\n")

        def enough() -> bool:
            items.extend(sensor.poll(1.0))
            return len(items) == 3 and sum(sensor.status().left_out.values()) == 5

        eventually(enough)
    finally:
        person.close()
    assert sensor.status().left_out["message over 16384 bytes: send fewer rows in each"] == 1
    assert keys(items) == [[1.0, 2.5], [3.0, 4.0]]
    assert [
        (item.key, int(item.targets["target"])) for item in items if isinstance(item, Label)
    ] == [("first", 1)]
    sensor.close()
    assert sensor.status().broker is None


def test_topics_of_a_wildcard_are_kept_apart(source, package, monkeypatch) -> None:
    mqtt = pytest.importorskip("edge.data.live.mqtt")
    monkeypatch.setattr(mqtt, "TOPICS_MAX", 2)
    url = "mqtt://127.0.0.1:9"
    sensor = source("mqtt", package(2, 2), url=url, topic="w/+", columns=["t", "h"])
    sensor.poll(0.0)
    messages = ("1 t,h", "2 h,t", "1 1,2", "2 4,3", "3 t,h", "3 5,6", "1 ", "1 7,8", "2 6,5")
    sensor._arrived.extend((f"w/{text[0]}", text[2:].encode()) for text in messages)
    assert keys(sensor.poll(1.0)) == [[[1.0, 2.0], [7.0, 8.0]], [[3.0, 4.0], [5.0, 6.0]]]
    left_out = {"message of a topic beyond the first 2": 2, "message without a row": 1}
    assert sensor.status().left_out == left_out


def test_a_node_reads_a_built_in_source_and_closes_it(tiny, tmp_path, eventually) -> None:
    log = tmp_path / "log.csv"
    log.write_text("")
    path = tmp_path / "node.toml"
    path.write_text(
        f'name = "ada"\nstate_dir = "state"\nmodel = "{tiny.folder}"\n'
        '[link]\nurl = "mqtt://127.0.0.1:9"\n[data]\nsource = "csv"\npoll_s = 0.01\n'
        '[data.options]\npath = "log.csv"\ncolumns = ["1", "2", "3"]\n'
    )

    def source() -> Any:
        with suppress(ControlError):
            return ask_status(tmp_path / "state" / "control.sock").source
        return None

    with running(read_node_config(path)):
        eventually(lambda: (now := source()) and now.live.open)
        add(log, "1,2,3\n4,5,6\n?\n7,8,9\n")
        eventually(lambda: source().counters["samples"] == 2)
        assert [*source().live.first.values()] == ["'?'"]
    opened = {os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")}
    assert str(log) not in opened
    path.write_text(path.read_text().replace("columns", "colums"))
    with pytest.raises(ConfigError, match=r"colums is not a setting: .* allows columns, horizon"):
        read_node_config(path)


@pytest.mark.parametrize("is_empty_first", [False, True])
def test_a_replaced_file_whose_header_lacks_a_column_is_refused(csv, is_empty_first) -> None:
    """Not read with the header before."""
    path, source = csv("a,b\n")
    source.poll(0.0)
    new = path.with_suffix(".new")
    new.write_text("" if is_empty_first else "z,b\n9,9\n")
    os.replace(new, path)
    source.poll(1.0)
    if is_empty_first:  # as logrotate leaves it
        source.poll(2.0)
        add(path, "z,b\n9,9\n")
    for second in (3.0, 10.0):
        with pytest.raises(DataError, match="no column a: its first line is 'z,b'"):
            source.poll(second)
    path.write_text("a;b\n1,5;2\n")
    assert keys(source.poll(100.0)) == [[1.5, 2.0]]


@pytest.mark.parametrize("row", ["2026-11-27T10:00:00Z,ERR", "10:00,", "-.5,ERR", "1e3,x", "NaN,"])
def test_an_emptied_file_goes_on_with_rows_that_a_fault_spoils(csv, row) -> None:
    path, source = csv("a,b\n1,2\n")
    source.poll(0.0)
    path.write_text(row + "\n3,4\n")
    source.poll(1.0)
    assert keys(source.poll(2.0)) == [[3.0, 4.0]]


@pytest.mark.parametrize("more", ["", "5,6\n7,8\n"])
def test_a_file_that_is_written_anew_and_is_not_shorter(csv, more) -> None:
    path, source = csv("a,b\n1,2\n")
    source.poll(0.0)
    path.write_text("a,b\n3,4\n" + more)
    source.poll(1.0)
    assert keys(source.poll(2.0))[:1] == [[3.0, 4.0]]
    path.write_text("a,b\n3,4\n" + more + "9,9\n")  # the same and one more
    assert keys(source.poll(3.0)) == [[9.0, 9.0]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\x00a\x00,\x00b", "log.csv is no CSV file in UTF-8 with a line for each row"),
        ("a,b\r1,2\r", "log.csv is no CSV file in UTF-8 with a line for each row"),
        ("a,temp\n1,2\n", "no column b: its first line is 'a,temp"),
    ],
)
def test_a_file_of_another_kind_is_named(csv, text, sentence) -> None:
    _, source = csv(text)
    with pytest.raises(DataError, match=sentence):
        source.poll(0.0)
