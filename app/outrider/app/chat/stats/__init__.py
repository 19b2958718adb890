"""Figures of drafting: what passes add up to, and the panel, the strip and the words that show it."""
