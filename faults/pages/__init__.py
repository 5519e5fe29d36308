"""What was measured, as pages and files for others to look at."""
