"""Several generations on one pair: who holds a place (`turns`), whose thread works (`lead`), a round (`rounds`).

It knows sequences, runs and controllers, and neither files nor text. Begin with `turns.Turns`.
"""
