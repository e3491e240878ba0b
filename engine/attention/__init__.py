"""Attention: one ragged metadata, several backends."""
