"""Real faults: signals, full disks, files that change, hostile environments. No mocks."""
