"""The token inspector: which pass brought a token, what was proposed there, and what the target thought of it."""
