"""What runs where and when: schedules as pure data, and their independent checker.

`make` builds a schedule of any strategy, `legality` proves it, `csv_text` writes and parses it,
`timeline` times it. This package knows nothing of tensors, options or torch.
"""
