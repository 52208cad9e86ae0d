"""Rows of text to samples and labels."""

import json
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.data.live.base import LeftOut
from edge.data.live.options import BUILT_IN, RowOptions, read_options
from edge.data.live.rows import LINE_MAX, LineSplitter, RowMapper
from edge.data.sources import Sample, make_source
from edge.errors import DataError
from ternmesh.config import ConfigError


@pytest.fixture
def left_out() -> LeftOut:
    return LeftOut()


@pytest.fixture
def mapper(package, left_out):
    def make(shape=(2,), *, regression=False, columns=("a", "b"), **options) -> RowMapper:
        made, numbers = RowOptions(columns=columns, **options), count(1)
        left_out.counts.clear()
        model = package(*shape, regression=regression)
        return RowMapper(made, model, left_out, lambda: f"k{next(numbers)}")

    return make


def take(mapper: RowMapper, *lines: str) -> list:
    return [
        (item.key, *(np.asarray(array).tolist() for array in item_arrays(item)))
        for line in lines
        for item in mapper.take(line.encode())
    ]


def item_arrays(item):
    return (item.inputs if isinstance(item, Sample) else item.targets).values()


@pytest.mark.parametrize(
    ("line", "reason", "place"),
    [
        ("{'a': 1, 'b': 2}", "JSON that is wrong (Expecting property name", "character 2: {'a'"),
        ('{"a": 1, "b": 2,}', "JSON that is wrong (", "character 1"),
        ('{"a": 1, "b": 2}\0', "JSON that is wrong (Extra data)", "character 17: "),
        ('{"a": 1, "b": nope}', "JSON that is wrong (Expecting value)", "character 15: "),
        (f'{{"a": {"1" * 5000}}}', "JSON that is nested too deep, or has numbers", '{"a": 111'),
        ("[" * 8000, "JSON that is nested too deep, or has numbers", "[[[["),
        ("[" * 100, "JSON that is nested too deep, or has numbers", "[[[["),
    ],
)
def test_json_that_is_wrong_is_named_with_its_place(mapper, left_out, line, reason, place) -> None:
    made = mapper(separator=",")
    assert take(made, line, "a,b", "3,4") == [("k1", [3.0, 4.0])]
    [found] = left_out.counts
    assert found.startswith(reason)
    assert place in left_out.first[found]


def test_json_over_several_lines_names_its_first_fault(mapper, left_out) -> None:
    good = json.dumps({"a": 1, "b": [2, {"c": ["x", None, -1.5e3]}]}, indent=1)
    for end in range(1, good.count("\n") + 1):
        made = mapper()
        assert take(made, *good.split("\n")[:end]) == []
        made.reader.end()
        assert left_out.counts == {"JSON that does not end": 1}
    rows = json.dumps([{"a": 1, "b": 2}, {"a": 3, "b": 4}]).replace("}", "}\n").replace("[", "[\n")
    assert take(mapper(), *rows.replace("\n,", ",\n").split("\n")) == [
        ("k1", [1.0, 2.0]),
        ("k2", [3.0, 4.0]),
    ]
    made, lines = mapper(), json.dumps({"a": 3, "b": 4}, indent=1).split("\n")
    assert take(made, '{"a": {', ' "a": 1,', " b: 2", "3", *lines) == [("k1", [3.0, 4.0])]
    made = mapper()
    assert take(made, "{", ' "a": 1,', " b: 2", "}", '{"a": 3, "b": 4}') == [("k1", [3.0, 4.0])]
    [reason] = left_out.counts
    assert reason.startswith("JSON that is wrong (Expecting property name")
    assert "b: 2" in left_out.first[reason]


def test_csv_with_a_header_json_and_places(mapper) -> None:
    named = mapper()
    assert take(named, "b,c,a", "2,9,1", '{"a": 3, "b": "4", "key": "mine"}') == [
        ("k1", [1.0, 2.0]),
        ("mine", [3.0, 4.0]),
    ]
    lines = (json.dumps({"a": 1, "b": 2, "key": key}) for key in (0, "", None))
    assert [item[0] for item in take(named, *lines)] == ["0", "k2", "k3"]
    assert take(mapper(columns=("3", "1")), "1, 2, 3", "1,3,1") == [
        ("k1", [3.0, 1.0]),
        ("k2", [1.0, 1.0]),
    ]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ('"a","b, in hPa"', "1.5,2"),
        ('a;"b, in hPa"', "1,5;2"),
        ('"b, in hPa"\ta', "2\t1,5"),
        ('x|a|"b, in hPa"', "0|1,5|2"),
    ],
)
def test_separators_are_found_and_decimal_commas_with_them(mapper, header: str, line: str) -> None:
    assert take(mapper(columns=("a", "b, in hPa")), header, line) == [("k1", [1.5, 2.0])]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("a,b", '"1,5",2'), "no number in column a"),
        (("a\tb", "1,000\t1"), "number as 1,000 in column a: write 1000, or 1.0"),
        (("a,b,a",), "header with a twice: rename one of the columns"),
    ],
)
def test_what_a_header_leaves_open_is_none(mapper, left_out, lines, reason) -> None:
    assert take(mapper(), *lines) == []
    assert left_out.counts == {reason: 1}


def test_a_comma_in_a_number_is_found_by_the_rows_around_it(mapper, left_out) -> None:
    by_place = mapper(columns=("1", "2"))
    assert take(by_place, "1,5;2,5", "?", "1;2") == [("k1", [1.5, 2.5]), ("k2", [1.0, 2.0])]
    assert take(by_place, "1,2,3", "3,4,5") == [("k3", [3.0, 4.0])]  # a second one is no accident
    assert left_out.counts.total() == 2
    said = mapper(columns=("1", "2"), separator=";")
    assert take(said, "1;2") == [("k1", [1.0, 2.0])]


def test_json_as_devices_publish_it(mapper, left_out) -> None:
    rows = mapper(columns=("env.temp", "id"))
    whole = '{"env": {"temp": 1.5}, "id": 2}'
    assert take(rows, "{", '"env": {"temp": 1.5},', '"id": 2', "}") == [("k1", [1.5, 2.0])]
    assert take(rows, f"[{whole}, {whole}]") == [("k2", [1.5, 2.0]), ("k3", [1.5, 2.0])]
    assert take(rows, f'[{{"id": 1}}, {whole}]') == [("k4", [1.5, 2.0])]
    assert left_out.counts.pop("no number in column env.temp") == 1
    assert take(rows, '{"env": {"te', whole) == [("k5", [1.5, 2.0])]
    assert left_out.counts == {"JSON that does not end": 1}
    assert take(mapper(columns=("1", "3")), "[1, 2, 3]") == [("k1", [1.0, 3.0])]


def test_the_last_rows_are_one_sample_and_scaled(mapper) -> None:
    rows = mapper((3, 2), columns=("1", "2"), scale={"1": [10, 2]})
    assert take(rows, "10,1", "12,2") == []
    assert take(rows, "14,3", "16,4") == [
        ("k1", [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]),
        ("k2", [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]),
    ]


def test_a_later_reading_is_the_label(mapper) -> None:
    options = {"columns": ("1", "2"), "target": "1", "horizon": 2, "scale": {"1": [0, 2]}}
    rows = mapper(regression=True, **options)
    items = take(rows, "2,0", "4,0", "6,0", "8,0")
    assert [item for item in items if len(item[1]) == 1] == [("k1", [3.0]), ("k2", [4.0])]
    assert [item[0] for item in items] == ["k1", "k2", "k3", "k1", "k4", "k2"]


def test_a_class_by_name_or_number_is_the_label_of_its_own_row(mapper, left_out) -> None:
    rows = mapper(columns=("1", "2"), target="3")
    labels = [item[1] for item in take(rows, "1,2,yes", "1,2,0", "1,2,2.0") if item[1] in (0, 1, 2)]
    assert labels == [1, 0, 2]
    assert len(take(rows, "1,2,maybe", "1,2,7", "1,2,-1", "1,2,0.5", "1,2,nan")) == 5
    assert left_out.counts == {"no label in column 3": 5}
    assert "maybe" in left_out.first["no label in column 3"]
    left_out.add("what is cut has a mark", 300 * "y")
    assert left_out.first["what is cut has a mark"].endswith("yyy...")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,x", "no number in column b"),
        ("nan,1", "no number in column a"),
        ("1,1e999", "number too large in column b"),
        ('{"a": -1e39, "b": 1}', "number too large in column a"),
        (f'{{"a": 1, "b": 1{"0" * 400}}}', "number too large in column b"),
        ("1", "line without the 2 fields of the others, and no JSON"),
        ('{"a": 1}', "no number in column b"),
        ('{"a": 1, "b": [1]}', "no number in column b"),
        ("2_9,1", "no number in column a"),
        ('{"a": true, "b": 1}', "no number in column a"),
        ('{"a": ', "JSON that does not end"),
        ('{"a": [' + "1," * 5000, "JSON over 8192 bytes: write an object a line"),
        ("1," * LINE_MAX, "line without the 2 fields"),
        ("[" + "{}," * 1001 + "{}]", "JSON that is no object, and no list"),
    ],
)
def test_what_is_no_row_is_counted(mapper, left_out, line: str, reason: str) -> None:
    rows = mapper()
    assert take(rows, "a,b", line) == []
    rows.reader.end()
    assert [(next(iter(left_out.counts))[: len(reason)], left_out.counts.total())] == [(reason, 1)]
    assert len(take(rows, "1,2")) == 1


VALUES = st.sampled_from(["1", "nan", "-", '"', "yes", "1e400", ""]) | st.text(max_size=6)
LINES = (
    st.binary(max_size=40)
    | st.lists(VALUES, max_size=4).map(",".join)
    | st.dictionaries(st.sampled_from(["1", "2", "key"]), VALUES | st.floats()).map(json.dumps)
)


@example([b"[]"])
@example([b"\x1c"])  # white space of Unicode, and none of ASCII
@given(st.lists(LINES, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lines_are_rows_or_counted(mapper, left_out, lines) -> None:
    rows = mapper((2,), columns=("1", "2"), target="1", horizon=1)
    for line in lines:
        before = left_out.counts.total()
        data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
        items = rows.take(data)
        rows.reader.end()
        assert items or left_out.counts.total() > before or not data.strip()
        assert all(np.isfinite(array).all() for item in items for array in item_arrays(item))


def test_lines_are_put_together_and_long_ones_left_out() -> None:
    left_out = LeftOut()
    lines = LineSplitter(left_out, skips=True)
    assert lines.take(b"half\nwhole\nbe") == [b"whole"]
    assert lines.take(b"gin") == []
    assert lines.take(b"ning\n\n") == [b"beginning", b""]
    for _ in range(5):
        assert lines.take(bytes(LINE_MAX)) == []
    assert lines.take(b"end\nnext\n") == [b"next"]
    assert left_out.counts == {"line over 8192 bytes": 1}


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("csv", {"path": "a"}, "data.options.columns is missing"),
        ("csv", {"path": "a", "columns": ["a"], "pth": 1}, "allows columns, horizon, path, rate_m"),
        ("csv", {"path": "a", "columns": ["a"], "scale": {"a": [1]}}, r"scale.a is \[1\]: it must"),
        ("csv", {"path": "a", "columns": ["a"], "scale": {"a": [1, 0]}}, "std above 0"),
        ("serial", {"port": "p", "columns": ["a"], "baud": 3}, "baud is 3: it must be 50 to"),
        ("microphone", {"rate": "8k"}, "rate is '8k': it must be a whole number"),
        ("folder", {"path": "a", "rate_max": 0}, "rate_max is 0.0: it must be"),
    ],
)
def test_a_wrong_option_is_one_sentence(source, options, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_options(source, options)


def test_models_that_a_source_cannot_feed_are_refused(package) -> None:
    with pytest.raises(DataError, match="has 5 numbers, which rows of 2 columns cannot fill"):
        make_source("csv", {"path": "a", "columns": ["a", "b"]}, package=package(5))
    with pytest.raises(DataError, match="and x of small has"):
        make_source("microphone", {}, package=package(5))
    options = {"url": "mqtt://localhost", "topic": "a#", "columns": ["1"]}
    with pytest.raises(DataError, match="topic 'a#': "):
        make_source("mqtt", options, package=package(1))
    assert set(BUILT_IN) == {"csv", "folder", "microphone", "mqtt", "serial"}


def test_rows_below_a_header_without_all_columns_are_left_out(mapper, left_out) -> None:
    """As a sensor sends one that starts again with other settings."""
    rows = mapper()
    assert len(take(rows, "a,b", "1,2", "B,z", "3,4", "5,6")) == 1
    assert left_out.counts == {"row of a header that has no column a": 3}
    assert take(rows, "b;a", "7;8") == [("k2", [8.0, 7.0])]
    for before, items in ((("a,b,kind", "1,2,yes"), 2), ((), 0)):  # also the first header
        assert len(take(mapper(target="kind"), *before, "a,b", "3,4")) == items
        assert left_out.counts == {"row of a header that has no column kind": 2}


def test_text_between_rows_without_a_header_costs_no_row(mapper, left_out) -> None:
    rows = mapper(columns=("1", "2"))
    assert len(take(rows, "boot ok", "1,2", "hello", "hello", "3,4", "a,b,c", "d,e,f", "5,6")) == 3
    assert left_out.counts.total() == 5


@pytest.mark.parametrize("label", ["true", '"1_0"', '"2_0"'])
def test_a_label_that_is_a_number_for_python_alone_is_none(mapper, left_out, label) -> None:
    rows = mapper(target="kind")
    assert len(take(rows, f'{{"a": 1, "b": 2, "kind": {label}}}')) == 1
    assert left_out.counts == {"no label in column kind": 1}
    assert len(take(rows, '{"a": 1, "b": 2, "kind": null}')) == 1
    assert left_out.counts.total() == 1  # that one waits for a label
