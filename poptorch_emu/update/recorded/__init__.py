"""The formulas recorded as graphs, with templates in place of weights."""
