"""Schedules as pure data: the order of each IPU's actions, and a separate checker.

`make` builds a schedule for any strategy, `legality` checks it, `csv_text` writes and parses it.
Schedules know no tensors and no options.
"""
