"""A whole study: options, loop, sampler, resume."""
