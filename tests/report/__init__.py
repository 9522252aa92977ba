"""Tests of the page and the contact sheet."""
