"""KV-cache accounting: what a design needs, and what an engine reserves. No torch."""
