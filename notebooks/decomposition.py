# %% [markdown]
# # Where the time goes
#
# `speedup = tokens_per_step * t_plain / (t_draft + t_verify + t_other)`. An arm wins if its steps deliver more tokens than
# they cost more time. This notebook reads `results/sample`, or the run that the environment variable `RESULTS` names.

# %%
from harness.report.decomposition import decomposition_lines
from harness.report.figures import decomposition, source
from harness.report.notebook import run_folder

run = source(run_folder())
print(run.run.run_id)

# %% [markdown]
# ## A step, and a token
#
# On the left a whole decode step, on the right the same divided by the tokens that it delivers. `n` counts steps, of the arm
# with fewest to the one with most.

# %%
bars = decomposition.bars(run)
bars or "this engine does not tell its steps"

# %%
bars.data.round(3) if bars else "nothing to show"

# %% [markdown]
# ## Why an arm wins or loses
#
# Measured parts, the acceptance length at which the arm would break even, and what the parts predict beside what was measured.

# %%
print(*decomposition_lines(run.run), sep="\n")
