"""The V0 engine. Shares nothing with its twin, engine/v1, but the packages beside both."""
