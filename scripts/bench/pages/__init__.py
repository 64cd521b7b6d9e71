"""What is shown: the figures of the documents, charts, and captures of real conversations."""
