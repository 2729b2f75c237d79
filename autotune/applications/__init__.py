"""Whole applications: what they run is recorded, tuned together, and run tuned unchanged."""
