"""Places of traced operations: the user's lines, blocks, scopes, stages and objects."""
