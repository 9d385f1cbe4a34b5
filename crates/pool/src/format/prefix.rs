//! First bytes of keys in the meta tree. 0x00 to 0x0f belong to the pool, 0x10 to 0xff to the layer above.

/// Pool properties: the name of the property follows.
pub const PROPERTY: u8 = 0x00;
/// Trees: the tree's id follows, 8 bytes big-endian.
pub const TREE: u8 = 0x01;
/// Segments: the segment's id follows, 8 bytes big-endian.
pub const SEGMENT: u8 = 0x02;
/// Relocations: old segment (8 bytes) and offset (4 bytes) follow, big-endian.
pub const RELOCATION: u8 = 0x03;
/// The last scrub (0 follows) and the counters of damage (1 follows).
pub const SCRUB: u8 = 0x04;
/// Damaged blocks: log (1 byte), segment (8 bytes) and offset (4 bytes) follow, big-endian.
pub const DAMAGE: u8 = 0x05;
/// The first prefix of the layer above.
pub const FIRST_FREE: u8 = 0x10;
