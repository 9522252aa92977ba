"""Tests with real faults instead of mocks: signals, full disks, changing files, and unusual environments."""
