"""Features that all option objects share: checks, freezing, copies, text."""

import copy
import pickle

import pytest

import poptorch_emu as poptorch
from poptorch_emu import near_names
from poptorch_emu.options import Options, OptionsDict
from poptorch_emu.options.base import merge, note_accepted

pytestmark = pytest.mark.feature("Options: freezing, copies, pickles", fidelity="exact")


class Sample(OptionsDict):
    def __init__(self):
        self._secret = [1]
        super().__init__(count=1, name="x", ratio=0.5)


def test_read_then_attribute_and_call_agree():
    assert Sample().count == Sample()("count") == 1


@pytest.mark.parametrize("name", ["counts", "_hidden", "set_"])
def test_read_when_unknown_then_attribute_error(name):
    with pytest.raises(AttributeError, match=f"Invalid attribute {name}\\."):
        getattr(Sample(), name)


@pytest.mark.parametrize("write", ["set", "attribute"])
def test_write_then_value_changes(write):
    sample = Sample()
    if write == "set":
        assert sample.set(count=4, name="y") is None
        assert sample.name == "y"
    else:
        sample.count = 4
    assert sample.count == 4


def test_write_when_unknown_then_lists_the_valid():
    for attempt in (lambda s: s.set(counts=1), lambda s: setattr(s, "counts", 1)):
        with pytest.raises(
            AssertionError,
            match=r"Invalid option counts, valid options are \['count', 'name', 'ratio'\]",
        ):
            attempt(Sample())


@pytest.mark.parametrize(
    ("name", "value"), [("count", 1.0), ("count", "1"), ("name", 3), ("ratio", 1)]
)
def test_set_when_type_differs_then_asserts(name, value):
    sample = Sample()
    with pytest.raises(AssertionError, match=f"Unexpected type .* for option {name}\\. Expected"):
        sample.set(**{name: value})
    assert vars(sample) == vars(Sample())


def test_set_when_right_then_no_other_name_is_looked_for(monkeypatch):
    monkeypatch.setattr(near_names, "difflib", None)
    options = Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    assert (options.device_iterations, options.output_mode) == (2, poptorch.OutputMode.All)


def test_set_when_bool_for_int_then_accepted():
    sample = Sample()
    sample.set(count=True)
    assert sample.count is True


def test_create_or_set_then_checks_only_what_exists():
    sample = Sample()
    sample.createOrSet(fresh="anything")
    assert sample.exists("fresh") and sample.fresh == "anything"
    with pytest.raises(AssertionError, match="Unexpected type"):
        sample.createOrSet(count="1")


def test_delete_if_exists_then_gone_also_when_frozen():
    sample = Sample()
    sample._freeze()
    sample.deleteIfExists("count")
    sample.deleteIfExists("count")
    assert not sample.exists("count")


def test_private_attribute_then_only_existing_ones_can_be_written():
    sample = Sample()
    sample._secret = [2]
    with pytest.raises(
        AttributeError, match=r"Invalid private attribute _new\. Valid attributes: \['_secret'"
    ):
        sample._new = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.set(count=2),
        lambda s: s.createOrSet(fresh=2),
        lambda s: setattr(s, "count", 2),
        lambda s: setattr(s, "_secret", 2),
        lambda s: setattr(s, "counts", 2),
    ],
    ids=["set", "createOrSet", "attribute", "private", "unknown"],
)
def test_write_when_frozen_then_refused_until_unfrozen(write):
    sample = Sample()
    sample._freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        write(sample)
    assert sample.toDict() == Sample().toDict()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: s.clone()], ids=["copy", "clone"])
def test_copy_of_frozen_then_deep_and_not_frozen(duplicate):
    sample = Sample()
    sample._freeze()
    other = duplicate(sample)
    other.set(count=2)
    other._secret.append(9)
    assert (sample.count, sample._secret) == (1, [1])


def test_pickle_then_keeps_values_and_the_frozen_flag():
    sample = Sample()
    sample.set(count=7)
    sample._freeze()
    restored = pickle.loads(pickle.dumps(sample))
    assert vars(restored) == vars(sample)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        restored.set(count=1)


def test_update_then_fills_and_returns_the_other():
    other = {"more": 1}
    assert Sample().update(other) is other
    assert other == {"more": 1, "count": 1, "name": "x", "ratio": 0.5}


def test_merge_when_a_key_is_in_both_then_names_it():
    with pytest.raises(
        AssertionError, match="Can't merge dictionaries, they have some keys in common: b"
    ):
        merge({"a": 1, "b": 1}, {"b": 2, "c": 3})


def test_repr_then_values_come_before_private_attributes():
    assert repr(Sample()) == "Sample(count=1, name='x', ratio=0.5, _secret=[1])"


def test_accepted_option_then_tells_once_at_info(caplog):
    note_accepted.cache_clear()
    caplog.set_level("INFO", logger="poptorch::python")
    for _ in range(2):
        Options().logDir(".")
    told = [record for record in caplog.records if "has no effect" in record.message]
    assert [record.levelname for record in told] == ["INFO"]
    assert "Options.logDir" in told[0].message
