"""Options that change the reports of a run."""

import pytest

from poptorch_emu.enums import OutputMode
from poptorch_emu.options import Options
from poptorch_emu.options.compilation_progress import ProgressBar

pytestmark = pytest.mark.feature("Options for reports and progress", fidelity="exact")


@pytest.mark.parametrize(("path", "directory"), [(None, "."), ("/profile", "/profile")])
def test_enable_profiling_then_sets_engine_options_beside_others(path, directory):
    options = Options()
    given = {"opt.level": "1"}
    options._Popart.setEngineOptions(given)
    assert options.enableProfiling(path) is options
    assert options._Popart.options["engineOptions"] == {
        "opt.level": "1",
        "debug.allowOutOfMemory": "true",
        "autoReport.directory": directory,
        "autoReport.all": "true",
    }
    assert given == {"opt.level": "1"}


@pytest.mark.parametrize(
    ("environment", "is_told"),
    [('{"autoReport.all": "false"}', True), ('{"opt.level": "1"}', False), ("", False)],
    ids=["profiling", "other", "empty"],
)
def test_enable_profiling_when_environment_wins_then_warns(
    environment, is_told, monkeypatch, caplog
):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", environment)
    Options().enableProfiling()
    text = "Profiling setting overridden by environment variable."
    assert (text in caplog.text) == is_told


def test_relax_optimizer_attributes_checks_then_remembered():
    assert Options()._relax_optimizer_checks is False
    assert Options().relaxOptimizerAttributesChecks()._relax_optimizer_checks is True


def test_disable_module_namescope_then_remembered():
    assert Options().disableModuleNamescope()._module_namescope_enabled is False


def test_location_excludes_then_replaced_and_extended():
    options = Options().appendToLocationExcludes("a", "b")
    assert options._source_location_excludes == [
        "install/poptorch",
        "site-packages/torch",
        "site-packages/poptorch",
        "a",
        "b",
    ]
    assert options.sourceLocationExcludes(["c"])._source_location_excludes == ["c"]


@pytest.mark.parametrize("show", [True, False])
def test_show_compilation_progress_bar_then_decides_on_its_entry(show):
    options = Options().outputMode(OutputMode.All).showCompilationProgressBar(show)
    assert ("compilation_progress_bar_fn" in options.toDict()) == show


def test_progress_bar_then_shows_each_compilation_to_its_end(capsys):
    bar = ProgressBar()
    assert bar.compilation_seconds is None
    for _ in range(2):
        for progress in (0, 40, 100):
            bar(progress, 100)
    assert capsys.readouterr().err.count("Graph compilation: 100%") == 2
    assert bar.compilation_seconds >= 0
