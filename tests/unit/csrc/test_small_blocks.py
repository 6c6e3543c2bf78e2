"""Memory of small tensors: aligned and never shared, whichever thread releases it."""

import random
import threading

import torch
from hand_built import ALL, Reg, add, executor, one_segment

# Sizes in bytes around the sizes of blocks; the last ones are sizes of large tensors.
BYTES = [
    *(4, 60, 64, 68, 80, 84, 124, 128, 132, 1020, 1024, 1028),
    *(1280, 1284, 8192, 14336, 14340, 16380, 16384, 20000),
]
SIZES = [count // 4 for count in BYTES]


def doubling():
    """Returns an executor that doubles an input of any size, by way of a sum."""
    program, segment = one_segment()
    add(program, segment, "add.Tensor", [Reg(0), Reg(0)], [1])
    add(program, segment, "mul.Tensor", [Reg(1), 1.0], [2], dies=[1])
    program.store_output(segment, 2, ALL, 1)
    return executor(program)


def holds(tensor, value):
    return tensor.data_ptr() % 64 == 0 and bool((tensor == value).all())


def test_tensors_of_any_size_then_are_whole_and_share_nothing():
    engine, kept = doubling(), []
    for value in range(1, 300):
        size = SIZES[value % len(SIZES)]
        kept.append((2.0 * value, *engine.run([torch.full((size,), float(value))], 1)))
        if value % 3 == 0:
            del kept[value // 5]
        assert all(holds(tensor, expected) for expected, tensor in kept)


def test_tensors_when_other_threads_release_them_then_stay_whole():
    shared, wrong = [], []
    lock = threading.Lock()

    def work(seed):
        engine, choose = doubling(), random.Random(seed)
        for value in range(1, 400):
            made = engine.run([torch.full((choose.choice(SIZES),), float(value))], 1)[0]
            with lock:
                shared.append((2.0 * value, made))
                taken = [shared.pop(choose.randrange(len(shared))) for _ in shared[40:]]
            wrong.extend(each for each in taken if not holds(each[1], each[0]))
            del made, taken

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The threads that created the tensors in `shared` have ended.
    assert not wrong and shared and all(holds(tensor, value) for value, tensor in shared)
