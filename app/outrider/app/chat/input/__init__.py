"""What a person puts in: files and pastes, completion, history, an editor of their own. Most of it knows no widgets."""
