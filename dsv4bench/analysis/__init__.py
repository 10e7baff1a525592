"""What results mean: statistics, verdicts, roofline, speedups. No torch."""
