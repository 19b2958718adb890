"""Training drafters for a target: its own answers, its states, and a loop that a kill at any moment does not harm.

`recipe` is what a method brings: what it learns from, its loss, its file. Everything else is the same for all of them: `answers`
makes the data, `states` keeps what the target computed on it, `loop` trains, `paper` measures acceptance without the target,
`course` puts the stages of one run together. `decoder` is a model that gradients pass, `export` writes it as it would be
published, `sampled` lets it answer while it is trained.
"""
