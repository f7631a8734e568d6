"""The control of the fleet: what should run against what does run."""
