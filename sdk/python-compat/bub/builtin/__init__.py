"""Names of the built-in plugin that other plugins import."""
