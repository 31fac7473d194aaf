"""What `--help` shows by example, and the variable that it names."""

TRACEBACK = "SAMERIG_TRACEBACK"

BENCH_EXAMPLES = """examples:
  samerig bench cpu_smollm2                             the whole comparison, about ten minutes on two cores
  samerig bench cpu_smollm2 protocol=smoke              does it run? minutes, not an hour
  samerig bench cpu_smollm2 concurrency=1,8,32          three levels, measured inside each serving
  samerig bench cpu_smollm2 -m draft_budget=1,3,7       three jobs; each measures plain again
  samerig bench cpu_smollm2 best_budget=true            a second table: each drafter at its own best draft budget
  samerig bench ./my_rig.yaml sampler.temperature=0.7   a rig file from anywhere; groups come from rigs/
  samerig bench cpu_smollm2,smoke -m --results /shared/results hydra/launcher=ray
                                                        two rigs on machines of a Ray cluster; submitit_slurm for Slurm

An interrupted run is resumed by the same command. To start anew: --fresh."""

PLAN_EXAMPLES = """examples:
  samerig plan cpu_smollm2                              what bench would run, what is pinned, what is missing
  samerig plan h200_qwen27b_vllm                        commands for a GPU, planned on any machine
  samerig plan cpu_smollm2 concurrency=1,8 draft_budget=7

Runs nothing. Exit code 1 if something is missing on this machine."""

DOCTOR_EXAMPLES = """examples:
  samerig doctor cpu_smollm2                            is this machine ready for the rig?
  samerig doctor h200_qwen27b engine.interpreter=/opt/sglang/bin/python

Launches and downloads nothing. Exit code 1 if there is a fault; each comes with what to do."""

RIGS_EXAMPLES = """examples:
  samerig rigs                                          one line for each rig in rigs/, and those of rigs/published/"""

REPORT_EXAMPLES = """examples:
  samerig report results/cpu_smollm2-20260101-120000-0f345d
  samerig report cpu_smollm2-20260101-120000-0f345d     the same, looked up in results/
  samerig report                                        the newest run
  samerig report results/one results/two                two runs side by side, as far as their rigs agree
  samerig report results                                every run of a folder in one table: what a sweep gave
  samerig report RUN --html                             the page RUN/report.html, one file without a network
  samerig report RUN --csv > numbers.csv                every number; --markdown: tables for a model card
  samerig report RUN --figure docs/speedup.svg          the speedup figure; .png and .pdf too"""

TOP = f"""examples:
  samerig rigs
  samerig plan cpu_smollm2
  samerig bench cpu_smollm2 protocol=smoke
  samerig COMMAND --help                                more examples

{TRACEBACK}=1 in the environment shows where an error came from."""
