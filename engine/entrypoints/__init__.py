"""Ways in: the offline LLM and the OpenAI-compatible HTTP server."""
