"""Routes for other people's web applications."""
