"""Arrays of any library: their namespaces and dtypes, transfers to the host, rows by index, and norms."""
