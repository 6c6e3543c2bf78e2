"""`fit`, `evaluate` and `predict` on virtual IPUs."""
