"""The model zoo: one file a family, looked up lazily by name."""
