//! Where a pool's bytes live: a directory, a file or block device, memory; and a store that fails on purpose.
