"""What the measurements share: cells that can be resumed, pairs, other programs, tables, stages of a round."""
