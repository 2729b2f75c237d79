"""How much of the random tests runs: 1 for minutes in all, more for a longer look."""

import os

SHARE = float(os.environ.get("AUTOTUNE_STRESS", "1"))
"""Factor on the number of random cases, from the variable AUTOTUNE_STRESS."""
