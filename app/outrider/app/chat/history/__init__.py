"""How the drafters did in all chats so far: per model and drafter, week by week and version by version."""
