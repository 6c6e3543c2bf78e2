"""What optimisers compute, as plain functions of tensors and numbers."""
