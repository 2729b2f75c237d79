"""Which candidate next, when to stop, and what is emitted."""
