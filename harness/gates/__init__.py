"""Whether an arm's answers are worth its speed: identity with plain, lengths, endings, loops, and right answers.

Greedy identity is judged by the first token that differs, beside how often plain differs from itself between boots. A speedup
whose arm loops, answers wrong or chooses other tokens than the target would is marked wherever it is shown.
"""
