"""One module per engine: how its allocator lays caches out and what it reserves."""
