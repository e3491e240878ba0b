"""V0's loop, its process and its client. Twin: engine/v1/llm_engine."""
