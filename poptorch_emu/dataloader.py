"""`poptorch.DataLoader`: PyTorch's loader, with batches of the size that one call consumes."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from poptorch_emu.enums import DataLoaderMode
from poptorch_emu.log import logger
from poptorch_emu.options import Options


def batches_per_step(options: Options) -> int:
    """Returns how many micro-batches one call consumes."""
    groups: int = options.replication_factor // options.input_group_size
    steps: int = options.device_iterations * options.Training.gradient_accumulation
    return steps * groups


class DataLoader(TorchDataLoader[Any]):
    """Yields whole batches for one call of a wrapped model (exact in mode Sync)."""

    def __init__(
        self,
        options: Options,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Freezes `options`; `batch_size` counts the rows of one micro-batch."""
        assert isinstance(options, Options), (
            f"The first argument is of type {type(options)}, expected poptorch.Options."
        )
        options._freeze()
        self._combined = None if batch_size is None else batch_size * batches_per_step(options)
        self._poptorch_options = options
        if self._combined is not None and not drop_last and hasattr(dataset, "__len__"):
            remainder = len(dataset) % self._combined
            if remainder:
                logger.warning(
                    "The number of elements in the dataset (%d) is not a multiple of the number "
                    "of elements of one step (%d), and drop_last=False: the last batch is too "
                    "small for the model.",
                    len(dataset),
                    self._combined,
                )
        super().__init__(
            dataset,
            batch_size=self._combined,
            shuffle=bool(shuffle) if "sampler" not in kwargs else None,
            num_workers=num_workers,
            drop_last=drop_last if self._combined is not None else False,
            persistent_workers=num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            **kwargs,
        )

    @property
    def combinedBatchSize(self) -> int | None:
        """The rows of one call (exact)."""
        return self._combined

    @property
    def options(self) -> Options:
        """The frozen options (exact)."""
        return self._poptorch_options

    def terminate(self) -> None:
        """Ends worker processes; nothing to do here."""
