"""The V1 engine. Shares nothing with its twin, engine/v0, but the packages beside both."""
