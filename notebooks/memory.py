# %% [markdown]
# # Memory
#
# What a drafter costs in memory: its weights, its state, and the KV cache that it leaves less room for. This notebook reads
# `results/sample`, or the run that the environment variable `RESULTS` names.

# %%
from harness.report.figures import memory, source
from harness.report.notebook import run_folder

run = source(run_folder())
print(run.run.run_id)
stack = memory.stack(run)
print(stack.caption if stack else "no engine of this run told its memory")

# %%
stack

# %% [markdown]
# ## By arm
#
# GiB are 2^30 bytes. A kind that the engine does not tell is empty, not zero. `kv_tokens_lost` is the capacity that plain has
# and the arm has not; it is 0 where the rig pins the capacity, as a fair comparison should.

# %%
stack.data.round(3) if stack else "nothing to show"
