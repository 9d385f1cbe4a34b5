//! Making, linking, moving and removing.

use snowmelt_zpl::{Attributes, NewNode, Removed, RenameMode};

use super::error::VfsError;
use super::{Stat, Vfs, Who, ino};

impl Vfs {
    /// Makes something under a new name. It is referred to from then on, as by [`Vfs::lookup`].
    ///
    /// # Errors
    /// As [`snowmelt_zpl::FilesystemMut::create`]; [`VfsError::ReadOnly`].
    pub fn create(&self, parent: u64, name: &[u8], new: NewNode<'_>, who: Who) -> Result<Stat, VfsError> {
        self.check_free(parent, name)?;
        let caller = who.now();
        let attributes = self.on_head(&[parent], |fs| fs.create(parent, name, new, &caller))?;
        self.referred(attributes)
    }

    /// Gives something another name. It is referred to once more, as by [`Vfs::lookup`].
    ///
    /// # Errors
    /// As [`snowmelt_zpl::FilesystemMut::link`]; [`VfsError::ReadOnly`]; [`VfsError::Stale`] for what has no name left.
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
    /// As [`snowmelt_zpl::FilesystemMut::unlink`]; [`VfsError::ReadOnly`].
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
    /// As [`snowmelt_zpl::FilesystemMut::rmdir`]; [`VfsError::ReadOnly`].
    pub fn rmdir(&self, parent: u64, name: &[u8], who: Who) -> Result<(), VfsError> {
        let caller = who.now();
        let in_use = |object| self.inodes.is_used(object);
        let removed = self.on_head(&[parent], |fs| fs.rmdir(parent, name, &caller, in_use))?;
        self.removed(Some(removed));
        Ok(())
    }

    /// Moves what a name (of a directory) leads to.
    ///
    /// # Errors
    /// As [`snowmelt_zpl::FilesystemMut::rename`]; [`VfsError::ReadOnly`].
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

    /// In the root directory the name of the control directory is taken.
    fn check_free(&self, parent: u64, name: &[u8]) -> Result<(), VfsError> {
        if name == super::control::CONTROL_NAME && self.has_control() && parent == self.root_object()? {
            let name = name.to_vec();
            return Err(snowmelt_zpl::ZplError::Exists { directory: parent, name }.into());
        }
        Ok(())
    }

    /// Two inodes must be of one filesystem.
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
