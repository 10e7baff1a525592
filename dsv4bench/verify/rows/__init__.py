"""The conformance rows: each is a fault that was reported against some engine, turned into a trial."""
