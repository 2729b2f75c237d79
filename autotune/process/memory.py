"""The memory that this process and its children may take."""

import psutil

from autotune.deploy import cgroups


def free_mib() -> int:
    """Returns how much memory is free to this process: the machine's, or its groups' if less."""
    free = cgroups.free_memory_bytes()
    available = psutil.virtual_memory().available
    return (available if free is None else min(available, free)) >> 20


def usable_mib() -> int:
    """Returns how much memory this process may take at most: the machine's, or its groups'."""
    limit = cgroups.memory_limit_bytes()
    total = psutil.virtual_memory().total
    return (total if limit is None else min(total, limit)) >> 20
