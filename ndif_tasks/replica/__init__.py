"""The replica: the Celery worker of one deployment, and what it needs to size, load and make models."""
