"""What comes out of a study: the final comparison, the result, the files that are written."""
