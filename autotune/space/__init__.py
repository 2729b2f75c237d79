"""What may be tried: parameters, their values and conditions; configurations."""
