"""V1 only; twin: engine/v0/executor."""
