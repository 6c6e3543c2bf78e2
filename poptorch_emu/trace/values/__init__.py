"""Values that are known during a trace: constants, guarded inputs and integer state."""
