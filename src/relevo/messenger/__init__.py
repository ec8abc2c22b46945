"""The KV hand-off: who may write where, and when a page may be used again."""
