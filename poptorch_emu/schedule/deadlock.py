"""Deadlock check: whether all IPUs finish if each link between them holds few micro-batches.

The slots of the schedule are ignored. Each IPU runs its list as fast as its links allow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from poptorch_emu.schedule.actions import Action
from poptorch_emu.schedule.schedule import Link, Port, Schedule


def blocked_actions(schedule: Schedule, depths: Mapping[Link, int]) -> dict[int, Action]:
    """Simulates the IPUs as processes joined by links and returns the actions that never run.

    An action is ready when each of its incoming links holds its micro-batch and each of its
    outgoing links has room. The order in which ready actions run does not change the result,
    because each link has one producer and one consumer.

    Args:
        schedule: schedule with the list of each IPU.
        depths: number of micro-batches that each link can hold.

    Returns:
        For each IPU that cannot finish, its first action that never runs; empty without a deadlock.
    """
    held: dict[Link, set[int]] = {link: set() for link in depths}
    inputs: defaultdict[Port, list[Link]] = defaultdict(list)
    outputs: defaultdict[Port, list[Link]] = defaultdict(list)
    for link in depths:
        outputs[link[0]].append(link)
        inputs[link[1]].append(link)

    def try_run(port: Port, micro_batch: int) -> bool:
        has_inputs = all(micro_batch in held[link] for link in inputs[port])
        has_room = all(len(held[link]) < depths[link] for link in outputs[port])
        if has_inputs and has_room:
            for link in inputs[port]:
                held[link].remove(micro_batch)
            for link in outputs[port]:
                held[link].add(micro_batch)
        return has_inputs and has_room

    pending = [
        deque((a, port) for a in schedule.actions(ipu) for port in schedule.ports_of(a))
        for ipu in range(schedule.num_ipus)
    ]
    is_progressing = True
    while is_progressing:
        is_progressing = False
        for queue in pending:
            while queue and try_run(queue[0][1], queue[0][0].micro_batch):
                queue.popleft()
                is_progressing = True
    return {ipu: queue[0][0] for ipu, queue in enumerate(pending) if queue}
