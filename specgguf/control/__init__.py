"""How many tokens to draft: measured costs, running acceptance, and the decision made from both.

It draws no random numbers and sees no text. Begin at `controller`; `costs` and `acceptance` are what it knows.
"""
