"""Showing: tables and lines for the terminal. This room returns what to print, and never prints."""
