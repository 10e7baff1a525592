"""Running cases: contract, timers, rounds, workers, journal."""
