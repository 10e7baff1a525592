"""What a model is, as data: shapes, layer kinds, stages and their costs. No torch."""
