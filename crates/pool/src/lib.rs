//! The copy-on-write pool: segments, block pointers, the tree, transaction groups.
