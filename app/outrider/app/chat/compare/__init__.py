"""Compare mode: drafters on the same prompt one after the other, then replayed side by side as a race."""
