"""The front door's brain: registry of workers, queue, policy, dispatch, timelines."""
