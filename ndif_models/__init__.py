"""The nouns of the farm: settings, errors, keys, messages and tables. No Flask, no Celery, no torch."""
