"""Names of Medusa heads in a checkpoint. Loads no torch."""

OWN = "medusa_head."  # what the names of heads begin with where they are in the target's own checkpoint
