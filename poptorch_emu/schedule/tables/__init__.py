"""Schedules as tables: the order of each IPU's actions, for any number of IPUs and micro-batches.

`named` lists all tables. Each other file builds the rows of one family. `steps` assigns slots to
the rows, and `legality` checks them.
"""
