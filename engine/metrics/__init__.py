"""Metrics: one schema for both engines, and its Prometheus rendering."""
