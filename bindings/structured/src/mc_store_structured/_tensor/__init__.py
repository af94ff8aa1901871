"""Tensors in the store: their layout in bytes, and the methods that read and write them."""
