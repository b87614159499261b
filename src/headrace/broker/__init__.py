"""The shell: wiring and effects, no rules."""
