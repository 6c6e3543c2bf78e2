"""`horovod`: collectives between processes, as PopTorch programs use them for metrics and weights.

Loaded only if the real package is not installed.
"""
