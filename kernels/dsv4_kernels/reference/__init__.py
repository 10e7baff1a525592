"""The attention stack in plain torch, as exact as the dtype of its inputs allows."""
