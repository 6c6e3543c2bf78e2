"""What people look at: tables and files of what was compiled and what ran."""
