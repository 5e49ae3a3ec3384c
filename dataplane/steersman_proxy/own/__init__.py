"""The routes that the proxy answers itself, some of them after asking engines."""
