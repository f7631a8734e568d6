"""Weights on a GPU: one process holds them, each runner maps them, and what a job changed is put right."""
