"""The OpenAI-compatible HTTP server: schemas, streaming, limits, chat page."""
