"""What must be, whatever happened: logs, maps, transactions and commits, held against what was asked and what is seen."""
