"""What a publish goes through: judged, expected, stored, answered; in transactions and atomic commits too."""
