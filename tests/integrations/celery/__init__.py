"""The face of Celery."""
