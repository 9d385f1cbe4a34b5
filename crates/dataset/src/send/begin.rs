//! The features of a substream and its BEGIN record (`setup_featureflags`, `create_begin_record` and
//! `dmu_send_impl` of `module/zfs/dmu_send.c`).

use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::NvList;
use snowmelt_stream::record::{Begin, BeginFlags, HeaderType, ToName};

use super::step::{Base, Step, Target};
use crate::catalog::Kind;
use crate::error::SendError;
use crate::pool_features;
use crate::receive::key_data::CRYPT_KEYDATA;

/// Features that a dataset's content requires, whatever the options are.
const ALWAYS: Features = Features(
    Features::LARGE_DNODE.0 | Features::LONGNAME.0 | Features::LARGE_MICROZAP.0 | Features::REDACTED.0,
);

/// The features that a receiver of the step must support.
///
/// # Errors
/// [`SendError::NeedsRaw`], [`SendError::Unsendable`].
pub(super) fn features(step: &Step) -> Result<Features, SendError> {
    let (target, style) = (&step.target, step.style);
    let content = target.content.features;
    if target.is_raw() && !style.raw {
        return Err(SendError::NeedsRaw { name: target.name.clone() });
    }
    let mut features = Features(content.0 & ALWAYS.0);
    let mut add = |condition: bool, feature: Features| {
        if condition {
            features |= feature;
        }
    };
    // Where a feature is disabled, what is stored by it goes out as if it were not.
    let off = pool_features::disabled(&target.pool)?;
    let is_on = |name: &str| !off.contains(name);
    let compressed = style.compressed || style.raw;
    let embed = (style.embed || style.raw) && !target.is_raw() && is_on("embedded_data");
    add(target.kind == Kind::Filesystem, Features::SA_SPILL);
    add(
        (style.large_blocks || style.raw) && content.contains(Features::LARGE_BLOCKS),
        Features::LARGE_BLOCKS,
    );
    add(embed, Features::EMBED_DATA);
    add(compressed, Features::COMPRESSED);
    add((embed || compressed) && is_on("lz4_compress"), Features::LZ4);
    add(target.is_raw(), Features::RAW);
    add(compressed && content.contains(Features::ZSTD), Features::ZSTD);
    add(step.resume.is_some(), Features::RESUMING);
    if features.contains(Features::LARGE_MICROZAP) && !features.contains(Features::LARGE_BLOCKS) {
        return Err(SendError::Unsendable {
            name: target.name.clone(),
            why: "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream"
                .to_owned(),
        });
    }
    if features.contains(Features::REDACTED) && target.redact_snaps.is_none() {
        return Err(SendError::Unsendable {
            name: target.name.clone(),
            why: "it is redacted, but with respect to which snapshots is not known".to_owned(),
        });
    }
    Ok(features)
}

/// The BEGIN record and its payload.
///
/// # Errors
/// As [`features`]; when the name does not fit or the key data is damaged.
pub(super) fn begin(step: &Step) -> Result<(Begin, Vec<u8>), SendError> {
    let target = &step.target;
    let features = features(step)?;
    let mut flags = BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK;
    if step.base.info().is_some_and(|from| from.is_origin) {
        flags = flags | BeginFlags::CLONE;
    }
    if target.content.case_insensitive {
        flags = flags | BeginFlags::CI_DATA;
    }
    let payload = pack(&payload(step)?);
    let begin = Begin {
        header_type: HeaderType::Substream,
        features,
        creation_time: target.creation,
        objset_type: target.kind.objset_type(),
        flags,
        to_guid: target.guid,
        from_guid: step.base.info().map_or(0, |from| from.guid),
        to_name: to_name(&target.name)?,
        payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
    };
    Ok((begin, payload))
}

/// A snapshot's name as it is stored in BEGIN.
pub(super) fn to_name(name: &str) -> Result<ToName, SendError> {
    ToName::new(name.as_bytes()).ok_or_else(|| SendError::Unsendable {
        name: name.to_owned(),
        why: format!("its name is longer than {} bytes", ToName::MAX_LEN),
    })
}

/// The pairs in the order in which ZFS adds them.
fn payload(step: &Step) -> Result<NvList, SendError> {
    let mut list = NvList::new();
    if let Some(snaps) = &step.target.redact_snaps {
        list.insert("redact_snaps", snaps.clone());
    }
    if let Some(snaps) = step.base.info().and_then(|from| from.redact_snaps.as_ref()) {
        list.insert("redact_from_snaps", snaps.clone());
    }
    if let Some(resume) = step.resume {
        list.insert("resume_object", resume.object);
        list.insert("resume_offset", resume.offset);
    }
    if step.target.is_raw() {
        list.insert(CRYPT_KEYDATA, key_data(&step.target, &step.base)?);
    }
    Ok(list)
}

/// The key data as received, with the IV set of this stream's base.
fn key_data(target: &Target, base: &Base) -> Result<NvList, SendError> {
    let unsendable = |why: &str| SendError::Unsendable { name: target.name.clone(), why: why.to_owned() };
    let packed =
        target.key_data.as_ref().ok_or_else(|| unsendable("it is encrypted, but its key data is missing"))?;
    let mut list = NvList::unpack(packed).map_err(|error| unsendable(&format!("its key data: {error}")))?;
    let from = base.info().map_or(0, |from| from.ivset_guid);
    // Replaced in place, to keep the order of pairs.
    match list.pairs.iter_mut().find(|(name, _)| name == "from_ivset_guid") {
        Some((_, value)) => *value = from.into(),
        None => list.insert("from_ivset_guid", from),
    }
    Ok(list)
}

/// Packs a list for BEGIN. It is padded to 8 bytes, because some receivers read payloads in such units.
fn pack(list: &NvList) -> Vec<u8> {
    if list.is_empty() {
        return Vec::new();
    }
    // XDR, as in OpenZFS after 2.4: every release can read it, and machines of the other byte order read only XDR.
    let mut packed = list.pack_xdr();
    packed.resize(packed.len().next_multiple_of(8), 0);
    packed
}
