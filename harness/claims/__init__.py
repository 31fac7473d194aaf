"""What others published: the store of claims, and whether a claim's own numbers agree with each other."""
