"""The modules that programs import beside PopTorch: `pva`, `popdist` and the like.

Under the runner they have their own names (`names/aliases.py`); without it `pva` is
`poptorch_emu.companions.pva`.
"""
