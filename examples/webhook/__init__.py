"""A receiver of webhooks that stores each once, whichever of its processes it reaches, and however often it comes."""
