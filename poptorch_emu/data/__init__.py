"""Data loading: batches for whole calls, and a process that loads ahead."""
