"""Fake tensors, and the tensor metadata of results: shapes, strides and types."""
