"""What a person touches: the command line and the chat. Imports no torch."""
