"""Kernels: one wrapper and one plain-torch reference a file; ``native.py`` loads the compiled ones."""
