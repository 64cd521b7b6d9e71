"""How fast: our own settings beside each other, other programs beside ours, and where a round's time goes."""
