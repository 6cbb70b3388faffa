"""The search server and its page."""
