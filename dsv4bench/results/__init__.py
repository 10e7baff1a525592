"""Results as data: rows, manifests, the run directory. No torch."""
