"""The part of `Options` for diagnostics: names, logs, profiles, progress."""

from __future__ import annotations

import os
from typing import TypeVar

from poptorch_emu.log import logger
from poptorch_emu.options.base import OptionsDict, flag, note_accepted, require_type
from poptorch_emu.options.popart import _PopartOptions
from poptorch_emu.untrusted.files import given_path

Self = TypeVar("Self", bound="ReportingOptions")

_PROFILING_ENGINE_OPTIONS = ("debug.allowOutOfMemory", "autoReport.directory", "autoReport.all")
_NO_LIMIT = 2**64 - 1


class ReportingOptions(OptionsDict):
    """Setters that change displayed or written texts, never a result; a base of `Options`."""

    _popart: _PopartOptions
    _relax_optimizer_checks: bool
    _show_compilation_progress_bar: bool
    _module_namescope_enabled: bool
    _source_location_excludes: list[str]

    def logCycleCount(self: Self, log_cycle_count: bool) -> Self:
        """Makes `cycleCount()` return the cycles of a call (modelled)."""
        is_on = flag(log_cycle_count, "logCycleCount")
        self._popart.set("instrumentWithHardwareCycleCounter", is_on)
        return self

    def enableProfiling(self: Self, profile_dir: str | None = None) -> Self:
        """Writes a report of memory and time to `profile_dir`, by default "." (modelled)."""
        given_path(profile_dir or ".", "profile_dir")
        environment = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        if any(option in environment for option in _PROFILING_ENGINE_OPTIONS):
            logger.warning(
                "Profiling setting overridden by environment variable. Check content of "
                "POPLAR_ENGINE_OPTIONS."
            )
        profiling = ("true", profile_dir or ".", "true")
        self._popart.setEngineOptions(
            {
                **self._popart.options.get("engineOptions", {}),
                **dict(zip(_PROFILING_ENGINE_OPTIONS, profiling, strict=True)),
            }
        )
        return self

    def modelName(self: Self, name: str) -> Self:
        """Sets the sub-directory of the report; by default "inference" or "training" (exact)."""
        require_type(name, str, "name of modelName")
        self.createOrSet(model_name=name)
        return self

    def logDir(self: Self, log_dir: str) -> Self:
        """Sets the directory of PopTorch's own log files, which are not written here (accepted)."""
        require_type(log_dir, str, "log_dir")
        given_path(log_dir, "log_dir")
        note_accepted("Options.logDir")
        self.set(log_dir=log_dir)
        return self

    def maxRepeatLogs(self: Self, max_lines: int | None) -> Self:
        """Limits repeats of a kind of compiler message; `None` for no limit (exact)."""
        self.set(max_repeat_logs=_NO_LIMIT if max_lines is None else max_lines)
        return self

    def relaxOptimizerAttributesChecks(self: Self, relax: bool = True) -> Self:
        """Logs unexpected attributes of an optimiser at level DEBUG instead of WARN (exact)."""
        self._relax_optimizer_checks = flag(relax, "relaxOptimizerAttributesChecks")
        return self

    def showCompilationProgressBar(self: Self, show: bool = True) -> Self:
        """Shows the progress of compilation, which `compilationTime()` requires (exact)."""
        self._show_compilation_progress_bar = flag(show, "showCompilationProgressBar")
        return self

    def disableModuleNamescope(self: Self) -> Self:
        """Leaves the names of modules out of the names of operations (exact)."""
        self._module_namescope_enabled = False
        return self

    def sourceLocationExcludes(self: Self, excludes: list[str]) -> Self:
        """Sets parts of paths that are not shown as the source of an operation (accepted).

        The emulator leaves out PyTorch, this package and the standard library.
        """
        note_accepted("Options.sourceLocationExcludes")
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self: Self, *excludes: str) -> Self:
        """Adds parts of paths to those of `sourceLocationExcludes` (accepted)."""
        note_accepted("Options.appendToLocationExcludes")
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self
