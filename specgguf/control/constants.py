"""Every number that the controller was given rather than measured, with what it is worth.

Beside each stands what is lost without it, as a change of the mean or the worst cell of a world in the ablation
(docs/controller.md; `scripts/bench/run ablation`). This module decides nothing.
"""

from __future__ import annotations

from specgguf.decode.records import FORCED

# --- costs: each is a measurement of its own times one factor of the machine. Variances are of natural logarithms.
SAMPLE_NOISE = 0.05**2  # of one measured pass: the unit of the three below
LOAD_NOISE = 0.1**2  # of what was measured at load; as certain as a seen cost: busy machine, worst -4 %
COST_NOISE = 0.01**2  # of a cost that was seen often; 0: simulator, worst -0.6 %
MACHINE_DRIFT = 0.012**2  # of the machine's factor, more with each pass; 0: busy machine, worst -4 %
CLIP = 0.4  # a sample further off than this (1.5 times) counts as that far; unclipped: simulator, worst -19 %
PAD_BELOW = 0.95  # pad where the larger batch costs less than this much of it: what noise may not trigger
# Padding: 1.3 times plain speed on tiles of eight where all is accepted (tests), nothing elsewhere.

# --- acceptance: discounted counts
DECAY = 0.98  # about the last fifty observations count; 0.5 is caught by the tests on recordings, worst below -3 %
PRIOR, PRIOR_WEIGHT = 0.8, 4.0  # optimistic: 0.85 costs 0.9 % on the busy machine, 0.1 never begins
NEW_TEXT = 0.5  # of the way back to the prior at a new turn; 0: conversations, mean -1.4 %
CONFIDENCES = {0.0: 0.31, 0.3: 0.47, 0.5: 0.63, 0.7: 0.77, 0.85: 0.87, 0.95: 0.93, 0.99: 0.95}  # lower edge: prior
# One bin: recordings, mean -2.5 %, busy machine, worst -18 %.
# Length of the n-gram found: prior; one for all: recordings, worst -3 %. Forced tokens count apart.
MATCHES = {2: 0.4, 3: 0.5, 4: 0.65, FORCED: 0.99}

# --- draft lengths
HORIZON = (
    128  # tokens that may be expected to follow, at least: the ablation's answers end as announced, and do not show it
)
PROBE_BUDGET = 0.0075  # of plain decoding's time goes into probes; one every 32 tokens: busy machine, mean -2 %
