"""Overrides that tests share, so that a test which counts arms does not move when the default rig gains one."""

# cpu_smollm2 with plain and ngram alone: the two arms that need no checkpoint.
TWO_ARMS = ["~arm@arms.mtp", "~arm@arms.eagle3", "~arm@arms.dflash", "~arm@arms.dflash2"]
