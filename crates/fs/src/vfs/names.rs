//! Creating, linking, moving and removing names.

use snowmelt_zpl::{Attributes, NewNode, Removed, RenameMode};

use super::error::VfsError;
use super::{Stat, Vfs, Who, ino};

impl Vfs {
    /// Creates an object with a new name. Adds a reference like [`Vfs::lookup`].
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::create`], and [`VfsError::ReadOnly`].
    pub fn create(&self, parent: u64, name: &[u8], new: NewNode<'_>, who: Who) -> Result<Stat, VfsError> {
        self.check_free(parent, name)?;
        let caller = who.now();
        let attributes = self.on_head(&[parent], |fs| fs.create(parent, name, new, &caller))?;
        self.referred(attributes)
    }

    /// Adds a name to an object. Adds a reference like [`Vfs::lookup`].
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::link`], [`VfsError::ReadOnly`], and [`VfsError::NotFound`] for an object
    /// without a name.
    pub fn link(&self, number: u64, parent: u64, name: &[u8], who: Who) -> Result<Stat, VfsError> {
        self.check_same(number, parent)?;
        self.check_free(parent, name)?;
        if self.inodes.is_unlinked(number) {
            return Err(VfsError::NotFound { parent, name: name.to_vec() });
        }
        let caller = who.now();
        let attributes = self.on_head(&[number, parent], |fs| fs.link(number, parent, name, &caller))?;
        self.referred(attributes)
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::unlink`], and [`VfsError::ReadOnly`].
    pub fn unlink(&self, parent: u64, name: &[u8], who: Who) -> Result<(), VfsError> {
        let caller = who.now();
        let in_use = |object| self.inodes.is_used(object);
        let removed = self.on_head(&[parent], |fs| fs.unlink(parent, name, &caller, in_use))?;
        self.removed(Some(removed));
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::rmdir`], and [`VfsError::ReadOnly`].
    pub fn rmdir(&self, parent: u64, name: &[u8], who: Who) -> Result<(), VfsError> {
        let caller = who.now();
        let in_use = |object| self.inodes.is_used(object);
        let removed = self.on_head(&[parent], |fs| fs.rmdir(parent, name, &caller, in_use))?;
        self.removed(Some(removed));
        Ok(())
    }

    /// Moves an object from one name (in a directory) to another.
    ///
    /// # Errors
    /// Like [`snowmelt_zpl::FilesystemMut::rename`], and [`VfsError::ReadOnly`].
    pub fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
        who: Who,
    ) -> Result<(), VfsError> {
        self.check_same(from.0, to.0)?;
        self.check_free(to.0, to.1)?;
        let caller = who.now();
        let in_use = |object| self.inodes.is_used(object);
        let removed = self.on_head(&[from.0, to.0], |fs| fs.rename(from, to, mode, &caller, in_use))?;
        self.removed(removed);
        Ok(())
    }

    /// Checks that the name is not that of the control directory in the root directory.
    fn check_free(&self, parent: u64, name: &[u8]) -> Result<(), VfsError> {
        if name == super::control::CONTROL_NAME && self.has_control() && parent == self.root_object()? {
            let name = name.to_vec();
            return Err(snowmelt_zpl::ZplError::Exists { directory: parent, name }.into());
        }
        Ok(())
    }

    /// Checks that two inodes belong to the same filesystem.
    fn check_same(&self, a: u64, b: u64) -> Result<(), VfsError> {
        if ino::slot(a) != ino::slot(b) {
            return Err(VfsError::OtherFilesystem { a, b });
        }
        Ok(())
    }

    fn referred(&self, attributes: Attributes) -> Result<Stat, VfsError> {
        let base = self.base()?;
        let number = attributes.object;
        self.inodes.looked_up(number, attributes.generation, base.epoch);
        let blocks = base.view.blocks(&attributes)?;
        Ok(self.stat_of(number, attributes, blocks))
    }

    fn removed(&self, removed: Option<Removed>) {
        if let Some(Removed { object, kept: true, .. }) = removed {
            self.lost_its_names(object);
        }
    }
}
