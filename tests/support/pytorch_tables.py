"""Tables of `torch.distributed.pipelining`, created without processes and stages."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import schedules


def pytorch_rows(
    kind: str, num_ranks: int, stages_per_rank: int, num_micro_batches: int
) -> list[list[str]]:
    """Returns the actions of each rank as text, without pauses; overlapping actions are in order.

    Args:
        kind: name of a schedule class.
    """
    schedule: Any = object.__new__(getattr(schedules, kind))
    schedule.pp_group_size = num_ranks
    schedule.n_local_stages = stages_per_rank
    schedule._stages = [None] * stages_per_rank
    schedule.num_stages = schedule._num_stages = num_ranks * stages_per_rank
    schedule._n_microbatches = num_micro_batches
    schedule.number_of_rounds = max(1, num_micro_batches // num_ranks)
    schedule.microbatches_per_round = num_micro_batches // schedule.number_of_rounds
    if hasattr(schedule, "_calculate_single_rank_operations"):
        rows = map(schedule._calculate_single_rank_operations, range(num_ranks))
    else:
        order = schedule._get_pipeline_order()
        rows = (order[rank] for rank in range(num_ranks))
    return [
        [
            str(part)
            for action in row
            if action is not None and action.is_compute_op
            for part in action.sub_actions or [action]
        ]
        for row in rows
    ]
