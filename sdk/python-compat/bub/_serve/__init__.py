"""Serves a plugin of the Python version over the plugin protocol."""
