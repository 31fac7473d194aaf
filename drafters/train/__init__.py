"""Training of drafters: prompts that no workload knows, answers of the target to them, and what learns from these."""
