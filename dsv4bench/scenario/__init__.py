"""Scenarios: the YAML, its schema, and its expansion into cases. No torch."""
