"""What is shown: streaming answers, status lines, tables, markdown, statistics.

Nothing here reads input or asks a model. Begin at `render`.
"""
