"""`DeviceProperties`: values, files, the table of cards, and what is none."""

import json
import pickle

import pytest

import cudnnlite as dnn
from cudnnlite.graph.device_properties import parse_properties


@pytest.fixture
def h200():
    return dnn.types.DeviceProperties.named("h200")


def test_properties_are_values(h200, tmp_path):
    again = dnn.types.DeviceProperties.from_json(h200.to_json())
    assert again == h200
    assert hash(again) == hash(h200)
    assert pickle.loads(pickle.dumps(h200)) == h200
    h200.save(tmp_path / "h200.json")
    assert dnn.types.DeviceProperties.load(tmp_path / "h200.json") == h200
    assert h200.replace(multiProcessorCount=66) != h200
    assert h200 != "h200"
    with pytest.raises(TypeError):
        h200.values["deviceVer"] = 800
    assert str(h200) == "NVIDIA H200, compute capability 9.0, 132 multiprocessors"


@pytest.mark.parametrize(
    ("name", "compute_capability"),
    [("a100", "8.0"), ("RTX 4090", "8.9"), ("h100", "9.0"), ("b200", "10.0"), ("rtx-5090", "12.0")],
)
def test_cards_are_known_by_their_usual_names(name, compute_capability):
    assert dnn.types.DeviceProperties.named(name).compute_capability == compute_capability


def test_every_card_has_what_cudnn_asks_for():
    for name in dnn.types.DeviceProperties.known_names:
        values = dnn.types.DeviceProperties.named(name).values
        assert len(values) == 24
        assert values["maxSharedMemoryPerBlock"] <= values["maxSharedMemoryPerBlockOptin"]


def test_a_newer_cudnn_may_know_more_properties(h200):
    newer = dnn.types.DeviceProperties({**h200.values, "smCountOrigin": 0, "clusters": [1, 2]})
    assert dnn.types.DeviceProperties.from_json(newer.to_json()) == newer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deviceVer": "9.0"}, "deviceVer='9.0' is not an integer"),
        ({"deviceVer": True}, "deviceVer=True is not an integer"),
        ({"l2CacheSize": 1 << 40}, "l2CacheSize=1099511627776; allowed: 0 to 2147483647"),
        ({"totalGlobalMem": 0}, "totalGlobalMem=0; allowed: 1 to"),
        ({"maxGridSize": [1, 2]}, r"maxGridSize=\[1, 2\]; needed: three integers"),
        ({"maxBlockSize": 3}, "maxBlockSize=3; needed: three integers"),
        ({"deviceName": 3}, "deviceName=3; needed: a text"),
        ({"deviceName": "gr\u00fcn"}, "deviceName='gr\u00fcn'; needed: a text"),
        ({"other": {1, 2}}, "values cannot be JSON"),
    ],
)
def test_what_cudnn_would_refuse_is_named(h200, change, message):
    with pytest.raises(dnn.ArgumentError, match=message):
        h200.replace(**change)


@pytest.mark.parametrize(
    "name",
    [name for name in dnn.types.DeviceProperties.named("t4").values if name != "memoryBusWidth"],
)
def test_a_missing_property_is_named(h200, name):
    values = {key: value for key, value in h200.values.items() if key != name}
    with pytest.raises(dnn.ArgumentError, match=f"the properties of a GPU lack {name}$"):
        dnn.types.DeviceProperties(values)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("h900", "properties: name='h900' is no card of the table; allowed: v100, "),
        ("nothing.json", "properties: path='nothing.json' cannot be read"),
        (3, "properties=3; needed: DeviceProperties, the name of a card"),
        (None, "properties=None; needed"),
    ],
)
def test_what_names_no_gpu_is_refused(value, message):
    with pytest.raises(dnn.ArgumentError, match=message):
        parse_properties(value, "properties")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "path='.*' *: .*decode"),
        (b"[", "is no JSON"),
        (b"[]", r"values=\[\] is not a mapping"),
        (b"{}", "lack .*deviceName"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, content, message):
    file = tmp_path / "gpu.json"
    file.write_bytes(content)
    with pytest.raises(dnn.ArgumentError, match=message):
        dnn.types.DeviceProperties.load(file)


def test_a_file_that_cannot_be_written_is_named(h200, tmp_path):
    with pytest.raises(dnn.ArgumentError, match="cannot be written"):
        h200.save(tmp_path / "nowhere" / "h200.json")


def test_cudnn_s_json_is_read(h200):
    text = json.dumps({**h200.values, "maxGridSize": [2147483647, 65535, 65535]})
    assert dnn.types.DeviceProperties.from_json(text) == h200
