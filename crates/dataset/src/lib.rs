//! Datasets, snapshots, properties, deadlists; send and receive.
