"""Schedules as tables: who runs what in which order, for any number of IPUs and micro-batches.

`named` has all that there are. Each of the others makes the rows of a family; `steps` gives them
their slots, and `legality` proves them.
"""
