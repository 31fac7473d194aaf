"""samerig's instrument: it holds a rig still, swaps only the drafter, and records what happened."""

__version__ = "0.1.0"
