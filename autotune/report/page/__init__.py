"""``report.html``: one file that shows a study, with figures, and works without a network."""
