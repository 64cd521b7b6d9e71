"""Every number that the controller was given rather than measured, with what it is worth.

Beside each stands what `scripts/bench/run ablation` loses without it, as mean change of speed in the simulator, on
the recordings and on the busy machine; docs/results/ablation.json has the whole table. This module decides nothing.
"""

from __future__ import annotations

from specgguf.decode.records import FORCED

# --- costs: each is a measurement of its own times one factor of the machine, learned from the same samples
SAMPLE_NOISE = 0.05**2  # variance of one measured pass, relative
LOAD_NOISE = 0.1**2  # of what was measured at load
COST_NOISE = 0.01**2  # of a cost that was seen often: costs change with the length of the context
MACHINE_DRIFT = 0.012**2  # by which the machine's factor becomes less certain with each pass
CLIP = 0.4  # a sample further from its estimate than this (1.5 times) counts as that far
PAD_BELOW = 0.95  # pad a batch where the larger one costs less than this much of it

# --- acceptance: discounted counts
DECAY = 0.98  # about the last fifty observations count
PRIOR, PRIOR_WEIGHT = 0.8, 4.0  # optimistic: a few rounds cost little, never beginning costs everything
CONFIDENCES = {0.0: 0.31, 0.3: 0.47, 0.5: 0.63, 0.7: 0.77, 0.85: 0.87, 0.95: 0.93, 0.99: 0.95}  # lower edge: prior
MATCHES = {2: 0.4, 3: 0.5, 4: 0.65, FORCED: 0.99}  # length of the n-gram found: prior of what follows it

NEW_TEXT = 0.5  # of the way back to the prior at a new turn

# --- draft lengths
HORIZON = 128  # tokens that are expected to follow, at least: the draft's prefill is spread over them
PROBE_BUDGET = 0.0075  # of the time of plain decoding goes into probes while drafting is off
PLAIN_EVERY = 128  # drafted rounds between two plain ones, which keep the cost of plain decoding honest
