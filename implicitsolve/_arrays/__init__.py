"""Arrays of any library: their namespaces and dtypes, transfers to the host, and rows by index."""
