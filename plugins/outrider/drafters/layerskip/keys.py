"""Keys of a config that name the exit layer. Loads no torch."""

KEYS = ("exit_layer", "assistant_early_exit")  # of a config that names its exit
