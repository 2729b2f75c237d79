"""All that an application loads: options, the tuned config, records, the loader."""
