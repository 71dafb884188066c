"""Guards that are dropped: by a filter, which sees entries, by a stance; and audits of what was dropped."""
