"""Stand-ins for modules that programs import beside PopTorch, such as `pva` and `popdist`.

A program that the runner starts imports them by their own names (`names/aliases.py`). Without the
runner, `pva` is `poptorch_emu.companions.pva`.
"""
