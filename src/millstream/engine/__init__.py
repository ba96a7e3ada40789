"""The rules: a deterministic state machine. No await, clock, randomness or files in here."""
