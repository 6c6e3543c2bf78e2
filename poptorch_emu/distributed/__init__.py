"""Several processes: who they are, how they meet, and what becomes of one that fails.

Built on torch.distributed; the engine makes the sums themselves
(`csrc/runtime/network/ring.cpp`).
"""
