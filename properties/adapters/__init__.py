"""Subjects for attention that others wrote, one library a module; none is imported unless asked for."""
