# %% [markdown]
# # What others published
#
# The claims in `results/published/claims.parquet`, as printed by their sources. Nothing here was measured by this project, and
# no two rows need share a rig: the spread of a method is the spread of rigs, targets and tasks as much as of the method.

# %%
import pandas as pd

from harness.report.figures import published
from harness.report.notebook import PUBLISHED

claims = pd.read_parquet(PUBLISHED)
print(f"{len(claims)} rows from {claims.source.nunique()} sources")

# %%
published.speedups(claims)

# %%
published.lengths(claims)

# %% [markdown]
# ## What a reader is not told
#
# Share of the rows with a speedup that state what one needs to repeat them.

# %%
told = claims[claims.speedup_low.notna()][["hardware", "engine", "engine_version", "target", "precision", "kv_dtype"]].notna()
told = told.join(claims[["budget", "temperature", "task", "concurrency", "baseline_tok_s"]].notna())
(100 * told.mean()).round(0).astype(int).rename("stated, % of rows").to_frame()

# %% [markdown]
# ## Reasons to look twice
#
# How many rows carry each flag; `samerig claims --flags` gives their rules.

# %%
claims["flags"].explode().dropna().value_counts().rename("rows").to_frame()
