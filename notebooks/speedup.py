# %% [markdown]
# # Speedup
#
# Who is faster than plain, by how much, and how sure that is. Every number comes from the raw rows of one run through
# `harness.metrics` and `harness.report`; this notebook defines none. It reads `results/sample`, or the run that the
# environment variable `RESULTS` names.

# %%
from harness.report.figures import source, speedup
from harness.report.notebook import run_folder, run_folders
from harness.report.verdict import sentences

run = source(run_folder())
print(run.run.run_id)
print(*sentences(run.run, run.numbers), sep="\n")

# %% [markdown]
# ## By content class
#
# The dashed line is plain. A bar that crosses it is no detected difference at these numbers of boots and prompts, which is not
# the same as no difference: `detectable` in the notes below is the minimum detectable effect, the difference that this design
# would find in four runs of five. A hollow point comes from one block and has no interval.

# %%
by_class = speedup.by_class(run)
by_class

# %%
by_class.data.round(3) if by_class else "no speedup in this run"

# %% [markdown]
# ## Against concurrency
#
# Speculation pays with idle arithmetic units. The more requests share a step, the less is idle, and the speedup falls.

# %%
speedup.by_concurrency(run) or "one level of concurrency was measured"

# %% [markdown]
# ## End to end, decoding alone, latency
#
# `speedup` counts prefill and queueing, `decode_speedup` leaves prefill out, `latency_speedup` exists only where both arms
# wrote answers of one length. They answer different questions; the table prints the first.

# %%
kinds = run.numbers[run.numbers.metric.isin(["speedup", "decode_speedup", "latency_speedup"])]
kinds[["content_class", "concurrency", "arm", "metric", "value", "low", "high", "n", "note"]].round(3)

# %% [markdown]
# ## Every run of the folder
#
# The figures above show the first run by name. Each verdict below is over its own run's plain; speeds of two runs are never
# divided by each other. `samerig report DIR` prints all runs of a folder as one table.

# %%
for folder in run_folders():
    one = source(folder)
    print(one.run.run_id, *sentences(one.run, one.numbers), sep="\n  ")
