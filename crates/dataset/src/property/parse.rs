//! Parses and checks values that users typed or streams contain.

use super::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, IndexValue, Kind, NAME_LEN_MAX, Property, PropertyError, PropertyName,
    REFRESERVATION_AUTO, TextRule, Types, VALUE_LEN_MAX, Value, find, is_user_property, parse_size,
};

/// Maximal length of a mountpoint's component (`ZFS_MAX_DATASET_NAME_LEN` without the terminating zero).
const MOUNTPOINT_COMPONENT_MAX: usize = 255;
/// `MIN_PBKDF2_ITERATIONS` in `include/sys/fs/zfs.h`.
const ITERATIONS_MIN: u64 = 100_000;

/// The dataset whose properties are set.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its type.
    pub types: Types,
    /// Whether it is being created. Then properties may be set that are fixed later.
    pub creating: bool,
    /// The block size in bytes of an existing volume.
    pub volume_block_size: Option<u64>,
}

/// A property and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The name as stored and sent (never an alias).
    pub name: String,
    /// The value.
    pub value: Value,
}

/// Checks `NAME=VALUE` pairs of `set`, `create -o`, `clone -o`, … (`zfs_valid_proplist` in
/// `lib/libzfs/libzfs_dataset.c`). This includes dependencies between properties: a normalization turns `utf8only` on,
/// and `utf8only=off` turns an inherited normalization off.
///
/// # Errors
/// The error of the first pair that is not allowed.
pub fn validate<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    target: Target,
) -> Result<Vec<Assignment>, PropertyError> {
    let mut assignments: Vec<Assignment> = Vec::new();
    for (name, text) in pairs {
        let assignment = resolve(name, text, target)?;
        if assignments.iter().any(|known| known.name == assignment.name) {
            return Err(PropertyError::Twice { name: assignment.name });
        }
        assignments.push(assignment);
    }
    let number_of = |name| assignments.iter().find(|a| a.name == name).and_then(|a| a.value.as_number());
    let implied = match (number_of("normalization"), number_of("utf8only")) {
        (Some(form), None) if form > 0 => Some(("utf8only", 1)),
        (Some(form), Some(0)) if form > 0 => return Err(PropertyError::Utf8Needed),
        (None, Some(0)) => Some(("normalization", 0)),
        _ => None,
    };
    assignments.extend(
        implied.map(|(name, number)| Assignment { name: name.to_owned(), value: Value::Number(number) }),
    );
    Ok(assignments)
}

fn resolve(name: &str, text: &str, target: Target) -> Result<Assignment, PropertyError> {
    let property = match PropertyName::parse(name)? {
        PropertyName::User(name) => {
            if text.len() > VALUE_LEN_MAX {
                return Err(PropertyError::ValueTooLong { name });
            }
            return Ok(Assignment { name, value: text.into() });
        }
        _ if target.types == Types::SNAPSHOT => return Err(PropertyError::Snapshot),
        PropertyName::Written { name, .. } => return Err(PropertyError::ReadOnly { name }),
        PropertyName::Accounting(name) => return Err(PropertyError::UserQuota { name }),
        PropertyName::Native(property) => property,
    };
    if !property.applies_to(target.types) {
        return Err(PropertyError::WrongType { name: name.to_owned() });
    }
    if property.is_readonly() && !(property.is_set_once() && target.creating) {
        return Err(PropertyError::ReadOnly { name: name.to_owned() });
    }
    let value = property.parse(text, target.types)?;
    if let (Kind::VolumeSize, Some(block_size), Value::Number(size)) =
        (property.kind, target.volume_block_size, &value)
        && size % block_size.max(1) != 0
    {
        return Err(PropertyError::NotBlockMultiple { name: property.name, block_size });
    }
    Ok(Assignment { name: property.name.to_owned(), value })
}

/// Checks a property from a peer in its stored form ([`Assignment::to_stored`]), as [`validate`] checks one from a
/// user.
///
/// # Errors
/// What is wrong with it. Encryption properties are refused, because there are no keys here.
pub fn validate_stored(name: &str, text: &str, types: Types) -> Result<Assignment, PropertyError> {
    let property = match PropertyName::parse(name)? {
        PropertyName::User(name) if text.len() > VALUE_LEN_MAX => {
            return Err(PropertyError::ValueTooLong { name });
        }
        PropertyName::User(name) => return Ok(Assignment { name, value: text.into() }),
        PropertyName::Written { name, .. } => return Err(PropertyError::ReadOnly { name }),
        PropertyName::Accounting(name) => return Err(PropertyError::UserQuota { name }),
        PropertyName::Native(property) => property,
    };
    if !property.applies_to(types) {
        return Err(PropertyError::WrongType { name: name.to_owned() });
    }
    let is_key = matches!(property.name, "encryption" | "keyformat" | "keylocation" | "pbkdf2iters");
    if is_key || property.attribute == super::Attribute::ReadOnly {
        return Err(PropertyError::ReadOnly { name: name.to_owned() });
    }
    let value = property.from_stored(text).ok_or_else(|| match property.kind {
        Kind::Index(_) => PropertyError::NotOneOf { name: property.name, values: property.values },
        _ => PropertyError::BadNumber { text: text.to_owned() },
    })?;
    property.check(&value)?;
    Ok(Assignment { name: property.name.to_owned(), value })
}

impl Property {
    /// Parses a value for a dataset of these types. Does not check whether the property may be set.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(&self, text: &str, types: Types) -> Result<Value, PropertyError> {
        let value = match self.kind {
            Kind::Text(_) => Value::from(text),
            Kind::Index(table) => IndexValue::number_in(table, text)
                .map(Value::Number)
                .ok_or(PropertyError::NotOneOf { name: self.name, values: self.values })?,
            Kind::YesNo => match text {
                "yes" => Value::Number(1),
                "no" => Value::Number(0),
                _ => return Err(PropertyError::NotOneOf { name: self.name, values: self.values }),
            },
            _ => Value::Number(self.parse_number(text, types)?),
        };
        self.check(&value)?;
        Ok(value)
    }

    fn parse_number(&self, text: &str, types: Types) -> Result<u64, PropertyError> {
        match (text, self.kind) {
            ("none", Kind::Limit) => Ok(u64::MAX),
            ("none", _) => Ok(0),
            ("auto", Kind::RefReservation) if types.intersects(Types::VOLUME) => Ok(REFRESERVATION_AUTO),
            ("auto", Kind::RefReservation) => Err(PropertyError::AutoOnlyForVolumes { name: self.name }),
            ("auto", _) => Err(PropertyError::NoAuto { name: self.name }),
            (_, Kind::Quota) => match parse_size(text)? {
                0 => Err(PropertyError::QuotaZero),
                size => Ok(size),
            },
            _ => parse_size(text),
        }
    }

    /// Checks whether a value, which may come from a stream, is valid for this property.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, value: &Value) -> Result<(), PropertyError> {
        let name = self.name;
        match (self.kind, value) {
            (Kind::Text(rule), Value::Text(text)) => self.check_text(rule, text),
            (Kind::Text(_), Value::Number(_)) => Err(PropertyError::NotText { name: name.to_owned() }),
            (_, Value::Text(_)) => Err(PropertyError::NotNumber { name: name.to_owned() }),
            (Kind::Index(table), &Value::Number(number)) => match IndexValue::name_in(table, number) {
                Some(_) => Ok(()),
                None => Err(PropertyError::UnknownIndex { name, number }),
            },
            (Kind::BlockSize, &Value::Number(size)) => {
                let in_range = (BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&size) && size.is_power_of_two();
                if in_range { Ok(()) } else { Err(PropertyError::BlockSize { name }) }
            }
            (Kind::SmallBlocks, &Value::Number(size)) if size > BLOCK_SIZE_MAX => {
                Err(PropertyError::SmallBlocks { name })
            }
            (Kind::VolumeSize, Value::Number(0)) => Err(PropertyError::Zero { name }),
            (Kind::Iterations, &Value::Number(rounds)) if rounds < ITERATIONS_MIN => {
                Err(PropertyError::Iterations)
            }
            (_, Value::Number(_)) => Ok(()),
        }
    }

    fn check_text(&self, rule: TextRule, text: &str) -> Result<(), PropertyError> {
        let name = self.name;
        if text.len() > VALUE_LEN_MAX {
            return Err(PropertyError::ValueTooLong { name: name.to_owned() });
        }
        match rule {
            TextRule::Mountpoint if text.contains(char::is_control) => {
                Err(PropertyError::MountpointUnclear { name })
            }
            _ if text.contains(char::is_control) => Err(PropertyError::ControlCharacter { name }),
            TextRule::Any => Ok(()),
            TextRule::Mountpoint if matches!(text, "none" | "legacy") => Ok(()),
            TextRule::Mountpoint if !text.starts_with('/') => {
                Err(PropertyError::MountpointNotAbsolute { name })
            }
            TextRule::Mountpoint if text.split('/').any(|c| c.len() > MOUNTPOINT_COMPONENT_MAX) => {
                Err(PropertyError::MountpointTooLong { name })
            }
            TextRule::Mountpoint if text.split('/').any(|c| matches!(c, "." | "..")) => {
                Err(PropertyError::MountpointUnclear { name })
            }
            TextRule::Mountpoint => Ok(()),
            TextRule::KeyLocation if is_key_location(text) => Ok(()),
            TextRule::KeyLocation => Err(PropertyError::KeyLocation),
            TextRule::SensitivityLabel if text.eq_ignore_ascii_case("none") => Ok(()),
            TextRule::SensitivityLabel => Err(PropertyError::SensitivityLabel),
        }
    }
}

/// `zfs_prop_valid_keylocation` in `module/zcommon/zfs_prop.c`.
fn is_key_location(text: &str) -> bool {
    let beyond = |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
    matches!(text, "none" | "prompt") || beyond("file:///") || beyond("https://") || beyond("http://")
}

impl Value {
    /// An assignment from a stream's property list. The list has numbers for all properties except text and user
    /// properties.
    ///
    /// # Errors
    /// `Unknown` for a native property that this build does not know; otherwise what is wrong with the value. The
    /// receiver prints a warning and skips the property, as `zfs receive` does.
    pub fn from_stream(name: &str, value: Self) -> Result<Assignment, PropertyError> {
        if let Some(property) = find(name) {
            property.check(&value)?;
            return Ok(Assignment { name: property.name.to_owned(), value });
        }
        let name = name.to_owned();
        if !is_user_property(&name) {
            return Err(PropertyError::Unknown { name });
        }
        match &value {
            Self::Number(_) => Err(PropertyError::NotText { name }),
            Self::Text(text) if text.len() > VALUE_LEN_MAX => Err(PropertyError::ValueTooLong { name }),
            Self::Text(_) if name.len() > NAME_LEN_MAX => Err(PropertyError::NameTooLong { name }),
            Self::Text(_) => Ok(Assignment { name, value }),
        }
    }
}
