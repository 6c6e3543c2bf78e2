"""Several processes: their launcher, their rendezvous, and their failures.

The room builds on torch.distributed. The engine itself computes the sums over processes
(`csrc/runtime/network/ring.cpp`).
"""
