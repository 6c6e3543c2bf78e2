"""Stores compiled programs: keys, files, and a folder of files."""
