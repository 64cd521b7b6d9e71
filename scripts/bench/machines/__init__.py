"""Several machines, as namespaces of this one."""
