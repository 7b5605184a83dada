"""Real peers for tests, demo and bench: how each is installed, started, watched and stopped."""
