"""Which configuration next, when to stop, and what is selected."""
