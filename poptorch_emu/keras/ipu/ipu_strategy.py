"""`IPUStrategy`: models that are built in its scope run on virtual IPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras

from poptorch_emu.keras.ipu.config import system_settings
from poptorch_emu.keras.model_methods import IpuModelMethods
from poptorch_emu.options import Options


class IPUStrategy:
    """Makes Keras models run on virtual IPUs (exact)."""

    def __init__(self) -> None:
        """Takes the IPUs that `IPUConfig` configures.

        Raises:
            ValueError: this is one of several processes.
        """
        processes = Options().Distributed.numProcesses
        if processes > 1:
            raise ValueError(
                f"This is one of {processes} processes, but IPUStrategy runs in one. Use several "
                "replicas in one process: IPUConfig.auto_select_ipus."
            )

    @contextmanager
    def scope(self) -> Iterator[IPUStrategy]:
        """Returns a context: models that are built or loaded inside run on IPUs (exact)."""
        build = keras.Model.__init__

        @functools.wraps(build)
        def build_for_ipus(model: Any, *args: Any, **kwargs: Any) -> None:
            build(model, *args, **kwargs)
            IpuModelMethods(model, system_settings).put_on()

        keras.Model.__init__ = build_for_ipus
        try:
            yield self
        finally:
            keras.Model.__init__ = build

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to run functions of TensorFlow (refused).

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "IPUStrategy.run takes functions of TensorFlow, which Keras 3 on PyTorch does not "
            "have. Use fit, evaluate and predict, or write the loop for PopTorch with "
            "poptorch.trainingModel."
        )
