"""Chats on disk: one SQLite file of the app's own, a tree of messages for each chat, written by one thread.

`opening` finds a file fit to use or says why not, `chats` is what can be done with it, `keeper` the thread that the chat
screen writes through; `exports` and `imports` carry chats out and in.
"""
