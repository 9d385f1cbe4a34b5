//! The invariants of this layer, checked; pool-level ones come with it.

/// What to check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Read and verify every data block too.
    pub data: bool,
}

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// One line per fault.
    pub faults: Vec<String>,
}
