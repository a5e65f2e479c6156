"""`make bench`: speed and memory through real HTTP, beside a bare baseline in the same run."""
