"""What else moved? Two rigs, results folders, published rigs or launch commands, in any mix, compared without running anything.

`sources.account_of` reads one side into canonical factors, each with where its value comes from; `compare.audit` compares two
accounts and gives the verdict of `harness.control`. `engines/` holds, as data, what each engine's flags are and what they mean.
"""
