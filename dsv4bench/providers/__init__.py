"""Who implements the stages."""
