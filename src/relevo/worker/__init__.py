"""A worker process: joins an engine to a messenger and speaks to the router."""
