"""What each IPU of the engine holds, and what it moves to and from streaming memory."""
