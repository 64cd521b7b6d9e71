"""Where messages come from: what is typed and pasted in a terminal, at any time. Knows nothing of what words mean."""
