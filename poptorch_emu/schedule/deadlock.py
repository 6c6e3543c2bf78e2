"""Whether IPUs that only talk through bounded FIFOs ever finish.

Slots play no part here: each IPU runs its list as fast as its FIFOs let it, as the engine does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from poptorch_emu.schedule.actions import Action
from poptorch_emu.schedule.schedule import Link, Port, Schedule


def blocked_actions(schedule: Schedule, depths: Mapping[Link, int]) -> dict[int, Action]:
    """Runs the IPUs as processes joined by FIFOs and returns where they get stuck.

    An action is ready when each FIFO into it offers its micro-batch and each FIFO out of it has
    room. Whether all IPUs finish does not depend on the order in which ready actions are taken.

    Args:
        schedule: gives each IPU its list.
        depths: the links and how many items each holds.

    Returns:
        For each IPU that cannot finish, the action it waits for; empty without a deadlock.
    """
    fifos: dict[Link, deque[int]] = {link: deque() for link in depths}
    inputs: defaultdict[Port, list[Link]] = defaultdict(list)
    outputs: defaultdict[Port, list[Link]] = defaultdict(list)
    for link in depths:
        outputs[link[0]].append(link)
        inputs[link[1]].append(link)

    def try_run(action: Action) -> bool:
        port = (action.kind, action.stage)
        has_inputs = all(
            fifos[link] and fifos[link][0] == action.micro_batch for link in inputs[port]
        )
        has_room = all(len(fifos[link]) < depths[link] for link in outputs[port])
        if has_inputs and has_room:
            for link in inputs[port]:
                fifos[link].popleft()
            for link in outputs[port]:
                fifos[link].append(action.micro_batch)
        return has_inputs and has_room

    pending = [deque(schedule.actions(ipu)) for ipu in range(schedule.num_ipus)]
    is_progressing = True
    while is_progressing:
        is_progressing = False
        for queue in pending:
            while queue and try_run(queue[0]):
                queue.popleft()
                is_progressing = True
    return {ipu: queue[0] for ipu, queue in enumerate(pending) if queue}
