"""`horovod`: collectives between processes, as PopTorch programs use them for metrics and weights.

Used only where the real package is not installed; there is one process.
"""
