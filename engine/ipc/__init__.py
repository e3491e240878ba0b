"""Processes and the messages between them: framing, sockets, child processes. Torch-free."""
