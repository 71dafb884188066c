"""Files that outlive a process: the artifact cache, codecs, and native libraries built into it."""
