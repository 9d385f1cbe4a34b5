//! A head that can be written only until its content is replaced.

use std::sync::Arc;

use snowmelt_dataset::Head;
use snowmelt_dataset::head::Tx;
use snowmelt_zpl::{Dnode, NewObject, Objects, ObjectsMut, Room, SourceError};

/// A head with the content that it had when this value was created. After the content was replaced, no transaction
/// begins any more, so nothing read from the old content is written to the new one.
pub(super) struct Live {
    head: Arc<Head>,
    generation: u64,
}

/// The error if the content was replaced.
#[derive(Debug, thiserror::Error)]
#[error("the content was replaced by a rollback or receive")]
struct Replaced;

impl Live {
    pub(super) fn new(head: Arc<Head>) -> Self {
        let generation = head.generation();
        Self { head, generation }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn is_current(&self) -> bool {
        self.head.generation() == self.generation
    }
}

impl Objects for Live {
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
        Objects::dnode(&*self.head, object)
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        Objects::read(&*self.head, object, offset, buf)
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        Objects::spill(&*self.head, object)
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        Objects::next_data(&*self.head, object, offset)
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        Objects::next_hole(&*self.head, object, offset)
    }
}

impl ObjectsMut for Live {
    type Tx<'a> = Tx<'a>;

    fn begin(&self, room: Room) -> Result<Tx<'_>, SourceError> {
        let tx = ObjectsMut::begin(&*self.head, room)?;
        // While a transaction is open, the content cannot be replaced.
        match self.is_current() {
            true => Ok(tx),
            false => Err(SourceError::Other(Box::new(Replaced))),
        }
    }

    fn txg(&self, tx: &Tx<'_>) -> u64 {
        self.head.txg(tx)
    }

    fn create(&self, tx: &Tx<'_>, new: NewObject) -> Result<u64, SourceError> {
        self.head.create(tx, new)
    }

    fn create_at(&self, tx: &Tx<'_>, object: u64, new: NewObject) -> Result<(), SourceError> {
        self.head.create_at(tx, object, new)
    }

    fn set_bonus(&self, tx: &Tx<'_>, object: u64, bonus_type: u8, bonus: Vec<u8>) -> Result<(), SourceError> {
        self.head.set_bonus(tx, object, bonus_type, bonus)
    }

    fn set_block_size(&self, tx: &Tx<'_>, object: u64, block_size: u32) -> Result<(), SourceError> {
        self.head.set_block_size(tx, object, block_size)
    }

    fn write(&self, tx: &Tx<'_>, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        ObjectsMut::write(&*self.head, tx, object, offset, data)
    }

    fn free(&self, tx: &Tx<'_>, object: u64, offset: u64, length: u64) -> Result<(), SourceError> {
        self.head.free(tx, object, offset, length)
    }

    fn set_spill(&self, tx: &Tx<'_>, object: u64, spill: Option<Vec<u8>>) -> Result<(), SourceError> {
        self.head.set_spill(tx, object, spill)
    }

    fn destroy(&self, tx: &Tx<'_>, object: u64) -> Result<(), SourceError> {
        ObjectsMut::destroy(&*self.head, tx, object)
    }
}
