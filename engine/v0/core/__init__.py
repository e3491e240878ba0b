"""V0's memory of requests: sequences, groups, queues and blocks. Twin: engine/v1/core. Torch-free."""
