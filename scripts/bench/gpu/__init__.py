"""Does a GPU do what is said about it? On random weights, since no model is needed to measure memory and time."""
