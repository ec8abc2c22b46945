"""The embedded engine: models, paged attention, scheduler, caches, sampler. Never knows who
pushes its pages where."""
