"""The formulas of optimisers, as plain functions of tensors and numbers."""
