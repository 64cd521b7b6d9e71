"""The model's own prediction heads: their contexts (`contexts`), what each has read of a text (`sequence`), and what
they are fed (`states`).

Everything of llama.cpp that only heads need is here, but for the names of its calls (`compat`). Begin with
`contexts.PredictionHeads`.
"""
