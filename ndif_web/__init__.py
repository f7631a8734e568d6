"""The doors of the farm: what a client or a person touches. Knows the layers below it; they never know of it."""
