"""Showing: tables for the terminal."""
