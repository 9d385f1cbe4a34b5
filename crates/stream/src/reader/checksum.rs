//! The running checksum of a stream that is read (`receive_read_payload_and_next_header` in `dmu_recv.c`).
//!
//! All of BEGIN is added to the sum. Of every other header, the first 280 bytes are added. Then the sum is compared
//! with the last 32 bytes, and these are added too. The payload follows. The sum starts again at each BEGIN. END also
//! holds the sum of everything before it.
//!
//! Senders before OpenZFS 0.6.4 left the 32 bytes zero, but added everything in the same way. END's checksum is
//! therefore right for such a stream. It is wrong for a stream whose record checksums were cleared later.
//!
//! The END that closes a package belongs to no BEGIN. `zfs send` leaves its checksum zero. `zfs send -D` continues with
//! the sum of the last substream. The filters of `zstream` (OpenZFS 2.0 to 2.4) start a new sum there, so it is the sum
//! of this END alone. `zfs receive` does not check it.

use crate::byte_order::ByteOrder;
use crate::error::ChecksumKind;
use crate::fletcher::Fletcher4;
use crate::grammar::EndKind;
use crate::record::{End, RECORD_LEN};
use crate::wire::{HeaderBytes, OFF_CHECKSUM};

const ZERO: [u64; 4] = [0; 4];
/// `DRR_END`.
const END: u32 = 5;

pub(super) struct Running {
    order: ByteOrder,
    sum: Fletcher4,
    /// The sum before the last header.
    before: [u64; 4],
    /// Whether records of the current substream have checksums. `None` before the first record that can have one.
    present: Option<bool>,
}

/// The checksum that does not match.
pub(super) enum Mismatch {
    Mixed { found: bool },
    Differs { which: ChecksumKind, expected: [u64; 4], found: [u64; 4] },
}

impl Running {
    pub(super) fn new() -> Self {
        Self { order: ByteOrder::Little, sum: Fletcher4::new(), before: ZERO, present: None }
    }

    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    pub(super) fn set_order(&mut self, order: ByteOrder) {
        self.order = order;
    }

    pub(super) fn has_record_checksums(&self) -> bool {
        self.present.unwrap_or(false)
    }

    pub(super) fn fold(&mut self, bytes: &[u8]) {
        self.sum.update_in(self.order, bytes);
    }

    /// Starts a new sum with a BEGIN.
    pub(super) fn begin(&mut self, bytes: &[u8; RECORD_LEN]) {
        self.sum = Fletcher4::new();
        self.present = None;
        self.fold(bytes);
    }

    /// Adds a header that is not BEGIN and compares its checksum.
    pub(super) fn header(
        &mut self,
        bytes: &[u8; RECORD_LEN],
        header: &HeaderBytes<'_>,
        end: EndKind,
    ) -> Result<(), Mismatch> {
        self.before = self.sum.state();
        self.fold(&bytes[..OFF_CHECKSUM]);
        let (expected, found) = (self.sum.state(), header.checksum());
        let zero = found == ZERO;
        if end == EndKind::Substream {
            match self.present {
                None => self.present = Some(!zero),
                Some(present) if present == zero => return Err(Mismatch::Mixed { found: !zero }),
                Some(_) => {}
            }
        }
        let closes_package = end == EndKind::Package && header.kind() == END;
        let own = closes_package && found == self.alone(&bytes[..OFF_CHECKSUM]);
        if !zero && !own && found != expected {
            return Err(Mismatch::Differs { which: ChecksumKind::Record, expected, found });
        }
        self.fold(&bytes[OFF_CHECKSUM..]);
        Ok(())
    }

    /// The sum of these bytes alone.
    fn alone(&self, bytes: &[u8]) -> [u64; 4] {
        let mut sum = Fletcher4::new();
        sum.update_in(self.order, bytes);
        sum.state()
    }

    /// Compares the stream checksum of the END whose header was added last.
    pub(super) fn end(&mut self, end: &End, kind: EndKind) -> Result<(), Mismatch> {
        let (expected, found) = (self.before, end.checksum);
        // `zfs send -D` wrote the sum of its last substream here.
        if kind == EndKind::Package && found == ZERO || found == expected {
            return Ok(());
        }
        Err(Mismatch::Differs { which: ChecksumKind::Stream, expected, found })
    }
}
