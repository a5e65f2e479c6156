"""HTTP without its traps: one deadline for a whole request, whom to trust, what an answer means."""
