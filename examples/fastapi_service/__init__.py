"""A web service on FastAPI that writes to a topic and reads from it."""
