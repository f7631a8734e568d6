"""The farm's tests; what several of them need is in modules beside them."""
