//! Arbitrary bytes as the bonus buffer and spill block of a file in an otherwise real filesystem.
//!
//! Attributes, extended attributes, ACLs and link targets must be read or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{DMU_OT_SA, DMU_OT_ZNODE, Dnode, Filesystem, Objects, SourceError, acl};
use std::sync::{Arc, OnceLock};

#[path = "../../crates/zpl/tests/common/mod.rs"]
mod common;

/// The real filesystem with one more object.
struct WithOne {
    real: Arc<MemoryObjects>,
    dnode: Dnode,
    spill: Vec<u8>,
}

impl Objects for WithOne {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        if object == self.dnode.object { Ok(Some(self.dnode.clone())) } else { self.real.dnode(object) }
    }
    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.real.read(object, offset, buf)
    }
    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        if object == self.dnode.object { Ok(Some(self.spill.clone())) } else { self.real.spill(object) }
    }
    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.real.next_data(object, offset)
    }
    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        self.real.next_hole(object, offset)
    }
}

static REAL: OnceLock<Arc<MemoryObjects>> = OnceLock::new();
const OBJECT: u64 = 1 << 40;

// The first byte chooses between attributes and znode, and whether there is a spill block. The second byte is the
// length of the bonus buffer, in units of eight bytes. The rest is the spill block.
fuzz_target!(|data: &[u8]| {
    let [choice, len, rest @ ..] = data else { return };
    let real = REAL.get_or_init(|| {
        let mut received = common::Received::default();
        let guid = received.receive(include_bytes!("../../testdata/demo/full.zstream"))[0];
        received.snapshots[&guid].clone()
    });
    let (bonus, spill) = rest.split_at((usize::from(*len) * 8).min(rest.len()));
    let dnode = Dnode {
        object: OBJECT,
        object_type: 19,
        bonus_type: if choice & 1 == 0 { DMU_OT_SA } else { DMU_OT_ZNODE },
        block_size: 512,
        slots: 1,
        has_spill: choice & 2 != 0,
        bonus: bonus.to_vec(),
        ..Dnode::default()
    };
    let objects = WithOne { real: real.clone(), dnode, spill: spill.to_vec() };
    let fs = Filesystem::open(objects).expect("a real filesystem");
    let _ = (fs.attributes(OBJECT), fs.readlink(OBJECT), fs.nfs4_acl(OBJECT));
    if let Ok(xattrs) = fs.xattrs(OBJECT) {
        for name in xattrs.keys().take(50) {
            assert!(fs.xattr(OBJECT, name).is_ok_and(|value| value.is_some()), "listed and not found");
        }
        let posix = |name: &str| xattrs.get(name.as_bytes()).map(Vec::as_slice);
        let _ = acl::getfacl(0o644, posix(acl::ACCESS), posix(acl::DEFAULT));
    }
});
