//! POSIX file operations on a filesystem dataset: walk, read, manifest, restore, diff.
