"""Every kind of trace, run by the real client here and on a farm: the values must be equal, bit for bit."""
