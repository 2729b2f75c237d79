"""All that an application loads: options, the tuned config, its records, the loader.

It may import errors alone, so that an application loads little.
"""
