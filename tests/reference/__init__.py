"""Slow, obviously right loops, written from the papers' equations; autograd gives their gradients."""
