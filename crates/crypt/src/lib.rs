//! Reading native encryption of OpenZFS.
//!
//! A raw stream (`zfs send -w`) contains blocks as they are on disk: encrypted, each with a MAC. Its BEGIN contains the
//! dataset's keys, wrapped in a key that only the user has ([`Keydata`]). With that key ([`WrappingKey`]) they are
//! unwrapped ([`Keys`]). A [`Decryptor`] then authenticates and decrypts data blocks, spill blocks, blocks of dnodes
//! and the object set. A [`Verifier`] does so for whole streams. This crate does not encrypt.
//!
//! ```no_run
//! use snowmelt_crypt::{Decryptor, Keydata, Keys, WrappingKey};
//! # fn f(begin: snowmelt_stream::NvList, write: snowmelt_stream::Write, mut payload: Vec<u8>)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let keydata = Keydata::of_begin(&begin)?;
//! let wrapping = WrappingKey::from_material(&keydata, b"correct horse")?;
//! let decryptor = Decryptor::new(Keys::unwrap(&keydata, &wrapping)?);
//! decryptor.block(write.object_type, &write.crypt, &mut payload)?;
//! # Ok(())
//! # }
//! ```
//!
//! The crate does no I/O, trusts no byte of its input and implements no cryptographic primitive. It compares MACs in
//! constant time and wipes keys from memory. `docs/crypt.md` describes which bytes are encrypted and authenticated. The
//! source is OpenZFS (read as a specification): `module/os/linux/zfs/zio_crypt.c`, `module/zfs/dsl_crypt.c`,
//! `lib/libzfs/libzfs_crypto.c`.

mod auth;
mod dataset;
mod decrypt;
mod dnode;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod key_format;
mod keydata;
mod keyring;
mod keys;
mod suite;
mod tree;
mod verify;

#[cfg(test)]
mod tests;

pub use auth::{BlockAuth, block_order, is_encrypted};
pub use decrypt::Decryptor;
pub use dnode::Dnode;
pub use error::{BlockError, KeyError, TreeError};
pub use key_format::KeyFormat;
pub use keydata::{Keydata, MAX_ITERATIONS, Metadnode};
pub use keyring::Keyring;
pub use keys::{Keys, WrappingKey};
pub use suite::Suite;
pub use tree::{Keep, MacTree, Shape};
pub use verify::{AuthCause, AuthError, Authenticated, Subject, Verifier};
