"""What operations take on the tiles of one IPU."""
