"""How exact: what an acceptance rule keeps, and how far logits move with the batch size."""
