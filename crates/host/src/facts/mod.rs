//! Facts about pools, as typed values that can travel between processes.

mod gather;
mod mirror;
mod pool;
mod scan;
mod store;

pub use gather::of;
pub use mirror::{MemberFacts, ResilverFacts};
pub use pool::{IoFacts, PoolFacts};
pub use scan::{ScanFacts, ScanState};
pub use store::{CacheFacts, EncryptionFacts, RequestFacts, SegmentFacts};
