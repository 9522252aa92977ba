"""Faults injected for real: signals, full disks, files that change, hostile environments. No mocks."""
