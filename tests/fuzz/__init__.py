"""A fuzz of what the torch-free replica does with what a hostile runner sends; its corpus is a test."""
