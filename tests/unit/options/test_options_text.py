"""Options from a file and from JSON."""

import sys

import pytest

from poptorch_emu import enums
from poptorch_emu.options import ConfigFileError, Options

pytestmark = pytest.mark.feature("Options.loadFromFile and from_json", fidelity="exact")


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        path = tmp_path / "ipu.cfg"
        path.write_text(text)
        return path

    return write


def test_load_from_file_then_each_line_is_a_call(config_file):
    path = config_file(
        "# a comment\n\n  deviceIterations(4)\nTraining.gradientAccumulation(8)\n"
        '_Popart.set("outlineThreshold", 10.0)\n'
    )
    options = Options()
    assert options.loadFromFile(path) is options
    assert options.device_iterations == 4
    assert options.Training.gradient_accumulation == 8
    assert options._Popart.options["outlineThreshold"] == 10.0


def test_load_from_file_then_lines_can_name_the_package(config_file, monkeypatch):
    package = sys.modules["poptorch_emu"]
    monkeypatch.setattr(package, "OutputMode", enums.OutputMode, raising=False)
    path = config_file("outputMode(poptorch.OutputMode.Sum)\nrandomSeed(options.output_mode)")
    options = Options().loadFromFile(str(path))
    assert (options.output_mode, options.random_seed) == (3, 3)


def test_load_from_file_twice_then_accumulates(config_file):
    options = Options().loadFromFile(config_file("deviceIterations(4)"))
    options.loadFromFile(config_file("replicationFactor(2)"))
    assert (options.device_iterations, options.replication_factor) == (4, 2)


def test_load_from_file_when_syntax_is_wrong_then_names_kept_line_and_file(config_file):
    path = config_file("# comment\n\ndeviceIterations(4)\n\nreplicationFactor 2\n")
    options = Options()
    with pytest.raises(ConfigFileError) as caught:
        options.loadFromFile(path)
    first, second = str(caught.value).splitlines()
    assert first.startswith("SyntaxError at line 2 of ipu.cfg: ")
    assert second.startswith("> ") and second.endswith("replicationFactor 2")
    assert options.device_iterations == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [("anchors(1)", AttributeError), ("deviceIterations('a')", AssertionError)],
)
def test_load_from_file_when_a_call_fails_then_earlier_lines_count(line, expected, config_file):
    options = Options()
    with pytest.raises(expected):
        options.loadFromFile(config_file(f"replicationFactor(2)\n{line}\ndeviceIterations(3)"))
    assert (options.replication_factor, options.device_iterations) == (2, 1)


def test_from_json_then_paths_are_called_with_their_values():
    options = Options()
    returned = options.from_json(
        '{"deviceIterations": 4, "Precision.enableFloatingPointExceptions": true,'
        ' "_Popart.set": ["outlineThreshold", 1.5], "outputMode": "OutputMode.Sum",'
        ' "modelName": "resnet.v2", "maxRepeatLogs": null}'
    )
    assert returned is options
    assert options.device_iterations == 4
    assert options._Popart.options["enableFloatingPointChecks"] is True
    assert options._Popart.options["outlineThreshold"] == 1.5
    assert options.output_mode == enums.OutputMode.Sum
    assert options.model_name == "resnet.v2"
    assert options.max_repeat_logs == 2**64 - 1


@pytest.mark.parametrize("name", ["OutputMode.None", "OutputMode.Sum.x", "OutputMode.mro"])
def test_from_json_when_no_member_then_string_stays(name):
    assert Options().from_json(f'{{"modelName": "{name}"}}').model_name == name


def test_from_json_when_enum_is_in_a_list_then_string_stays():
    with pytest.raises(AssertionError, match="'OutputMode.EveryN' is of type str"):
        Options().from_json('{"outputMode": ["OutputMode.EveryN", 2]}')


def test_from_json_when_path_unknown_then_attribute_error():
    with pytest.raises(AttributeError, match=r"Invalid attribute anchors\."):
        Options().from_json('{"anchors": 1}')


def test_from_json_when_value_is_an_object_then_one_argument():
    options = Options().from_json('{"setAvailableMemoryProportion": {"IPU0": 0.25}}')
    assert options.available_memory_proportion == {0: 0.25}
