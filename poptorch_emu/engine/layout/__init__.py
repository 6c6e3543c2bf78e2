"""In which order the segments lay out their values, what they prepare and what they fuse."""
