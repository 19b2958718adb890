"""Models in the chat: what is here and what can be brought, downloads, memory, which drafters go with which model."""
