"""What a run is asked for, and what it answers."""
