//! Errors of properties: why one cannot be set or shown.

use thiserror::Error;

/// Why a name or a value was refused. The messages follow `cannot set property for 'DATASET': `. They have the wording
/// of libzfs, because scripts match them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PropertyError {
    /// The name is neither a native property nor a valid name of a user property.
    #[error("invalid property '{name}'")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// A statistic, or a property that is fixed when the dataset is created.
    #[error("'{name}' is readonly")]
    ReadOnly {
        /// The name as given.
        name: String,
    },
    /// The property does not exist for this type of dataset.
    #[error("'{name}' does not apply to datasets of this type")]
    WrongType {
        /// The name as given.
        name: String,
    },
    /// A native property of a snapshot cannot be set.
    #[error("this property can not be modified for snapshots")]
    Snapshot,
    /// The value is not one of the values of an index property.
    #[error("'{name}' must be one of '{values}'")]
    NotOneOf {
        /// The property.
        name: &'static str,
        /// The allowed values.
        values: &'static str,
    },
    /// A number that does not begin with a digit.
    #[error("bad numeric value '{text}'")]
    BadNumber {
        /// The text as given.
        text: String,
    },
    /// A number followed by an unknown unit.
    #[error("invalid numeric suffix '{suffix}'")]
    BadSuffix {
        /// What followed the digits.
        suffix: String,
    },
    /// The number does not fit into 64 bits.
    #[error("numeric value is too large")]
    NumberTooLarge,
    /// `quota=0`: it is not clear whether "no quota" or "no bytes" is meant.
    #[error("use 'none' to disable quota/refquota")]
    QuotaZero,
    /// `auto` for a property that has no automatic value.
    #[error("'auto' is invalid value for '{name}'")]
    NoAuto {
        /// The property.
        name: &'static str,
    },
    /// `refreservation=auto` for something other than a volume.
    #[error("'{name}=auto' only allowed on volumes")]
    AutoOnlyForVolumes {
        /// The property.
        name: &'static str,
    },
    /// `recordsize` or `volblocksize` out of range.
    #[error("'{name}' must be power of 2 from 512B to 16M")]
    BlockSize {
        /// The property.
        name: &'static str,
    },
    /// `special_small_blocks` out of range.
    #[error("invalid '{name}' property: must be between zero and 16M")]
    SmallBlocks {
        /// The property.
        name: &'static str,
    },
    /// A volume of size 0.
    #[error("'{name}' cannot be zero")]
    Zero {
        /// The property.
        name: &'static str,
    },
    /// The size of a volume is not a multiple of its block size.
    #[error("'{name}' must be a multiple of volume block size ({})", super::format_bytes(*block_size))]
    NotBlockMultiple {
        /// The property.
        name: &'static str,
        /// The volume's block size in bytes.
        block_size: u64,
    },
    /// A mountpoint that is neither an absolute path nor a known word.
    #[error("'{name}' must be an absolute path, 'none', or 'legacy'")]
    MountpointNotAbsolute {
        /// The property.
        name: &'static str,
    },
    /// A mountpoint with a component of more than 255 bytes, or too long as a whole.
    #[error("component of '{name}' is too long")]
    MountpointTooLong {
        /// The property.
        name: &'static str,
    },
    /// A mountpoint with line breaks or other control characters, or with `.` or `..` in it.
    #[error("'{name}' has control characters, '.' or '..' in it")]
    MountpointUnclear {
        /// The property.
        name: &'static str,
    },
    /// One of ZFS's text properties with line breaks or other control characters.
    #[error("'{name}' has control characters in it")]
    ControlCharacter {
        /// The property.
        name: &'static str,
    },
    /// A key location that is neither `prompt` nor a URI.
    #[error("invalid keylocation")]
    KeyLocation,
    /// Too few PBKDF2 iterations to protect a passphrase.
    #[error("minimum pbkdf2 iterations is 100000")]
    Iterations,
    /// Sensitivity labels exist on Solaris only.
    #[error("mlslabels are unsupported")]
    SensitivityLabel,
    /// `utf8only=off` with a normalization.
    #[error("'utf8only' must be set 'on' if normalization chosen")]
    Utf8Needed,
    /// A text of 8 KiB or more.
    #[error("'{name}' is too long")]
    ValueTooLong {
        /// The property.
        name: String,
    },
    /// The name of a user property of 256 bytes or more.
    #[error("property name '{name}' is too long")]
    NameTooLong {
        /// The name as given.
        name: String,
    },
    /// Quotas of single users, groups and projects are not supported.
    #[error("'{name}': quotas and accounting of single users, groups and projects are not supported")]
    UserQuota {
        /// The name as given.
        name: String,
    },
    /// From a stream: a number for a text property.
    #[error("'{name}' must be a string")]
    NotText {
        /// The property.
        name: String,
    },
    /// From a stream: a text for a numeric property.
    #[error("'{name}' must be a number")]
    NotNumber {
        /// The property.
        name: String,
    },
    /// From a stream: the number of an index value that this build does not know.
    #[error("'{name}' has unknown value {number}")]
    UnknownIndex {
        /// The property.
        name: &'static str,
        /// The number as received.
        number: u64,
    },
    /// The same property twice in one command.
    #[error("property '{name}' specified multiple times")]
    Twice {
        /// The property.
        name: String,
    },
}
