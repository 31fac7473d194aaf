# %% [markdown]
# # Acceptance
#
# What the target accepted of what was drafted. Length and rate are different quantities, and neither is a speedup. This
# notebook reads `results/sample`, or the run that the environment variable `RESULTS` names.

# %%
from harness.report.figures import acceptance, source
from harness.report.notebook import run_folder

run = source(run_folder())
print(run.run.run_id)

# %% [markdown]
# ## Length against rate, with the budget
#
# A drafter that always fills its budget K lies on the line of its K: `length = 1 + K x rate`. At a larger K the same drafter
# has a lower rate and a greater length, which is why a rate without its K says nothing.

# %%
acceptance.length_against_rate(run) or "no arm of this run drafted"

# %% [markdown]
# ## By draft position
#
# `n` counts the steps that had a draft, of the arm with fewest to the one with most: n-gram drafts only where it finds a match.

# %%
acceptance.by_position(run) or "this engine does not tell its steps"

# %% [markdown]
# ## Pooled, and as a mean over requests
#
# Pooled values are sums over sums: every step weighs the same. A mean over requests weighs a short answer like a long one;
# published cards often print it. Both are below, with the tokens per decode step that speed follows.

# %%
names = ["acceptance_length", "acceptance_length_request_mean", "tokens_per_step", "coverage", "wasted_per_step"]
values = run.numbers[run.numbers.metric.isin(names) & run.numbers.arm.isin(run.drafting)]
values.pivot_table(index=["concurrency", "content_class", "arm"], columns="metric", values="value", sort=False)[names].round(3)
