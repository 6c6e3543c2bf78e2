"""Several processes: who they are, how they meet, and what becomes of one that fails.

Built on torch.distributed; the sums themselves are made by the engine (`csrc/runtime/ring.cpp`).
"""
