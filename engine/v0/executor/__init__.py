"""How V0 reaches its workers. Twin: engine/v1/executor."""
