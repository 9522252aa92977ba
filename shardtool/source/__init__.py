"""Sources of samples. A source lists its samples as a table, and knows how to read their payloads."""
