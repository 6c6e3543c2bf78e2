"""Option that lets values of inputs decide about shapes and the control flow of `forward`."""

from __future__ import annotations

from poptorch_emu.emulator.given_values import check_options, described
from poptorch_emu.options import Options


def set_value_guards(options: Options, *, max_programs: int = 8) -> None:
    """Captures forward with the values that it reads in the first call, and guards them (exact).

    A model that reads a value while it is captured, such as `int(index.max()) + 1`, `x[mask]`,
    `if lengths[0] > 4` or `sizes.tolist()`, is refused by default. With this option the value of
    the call becomes part of the program, with a guard: before each call the host recomputes each
    value that was read, for every micro-batch, and compares the bits. A call with other values
    runs another stored program, or captures one if none fits. No action has run when a guard
    fails, so that weights are never half updated.

    A real IPU has no such option. Values that depend on random draws, on operations that the host
    cannot compute, or on weights that change within a call are still refused.

    Args:
        options: options that are not frozen.
        max_programs: number of programs that one model may store, at least 1. A call that needs
            one more raises an error.

    Raises:
        AttributeError: the options are frozen.
        TypeError: `max_programs` is not an integer.
        ValueError: `max_programs` is less than 1.

    Example:
        >>> class Split(torch.nn.Module):
        ...     def forward(self, x, lengths):
        ...         return [part.sum() for part in x.split(lengths.tolist())]
        >>> options = poptorch.Options()
        >>> emulator.set_value_guards(options, max_programs=2)
        >>> model = poptorch.inferenceModel(Split(), options)
        >>> model(torch.ones(4), torch.tensor([1, 3]))
        [tensor(1.), tensor(3.)]
        >>> model(torch.ones(4), torch.tensor([2, 2]))
        [tensor(2.), tensor(2.)]
    """
    check_options(options)
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise TypeError(f"max_programs must be an integer, but got {described(max_programs)}.")
    if max_programs < 1:
        raise ValueError(f"max_programs must be at least 1, not {max_programs}.")
    options.Emulator.max_guarded_programs = max_programs
