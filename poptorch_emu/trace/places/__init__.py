"""Where traced operations belong: the user's lines, blocks, scopes, stages and objects."""
