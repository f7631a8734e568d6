"""Sessions: updates from the broker to one waiting client."""
