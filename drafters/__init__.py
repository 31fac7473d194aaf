"""Reference implementations: a target model in KV slots, verification, and every drafter. Imports nothing of harness."""
