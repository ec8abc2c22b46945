"""Starts and supervises processes: a deployment on this machine."""
