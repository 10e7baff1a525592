"""The attention layer in tensors: caches, block tables, inputs, streams."""
