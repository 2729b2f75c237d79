"""The record of a study, and who may write it."""
