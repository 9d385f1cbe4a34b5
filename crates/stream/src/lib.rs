//! The OpenZFS replication stream: records, nvlists, resume tokens, checksums and compression framings.
