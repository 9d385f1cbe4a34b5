//! `ioctl`s for file flags and project IDs: `chattr`, `lsattr` and quota tools (`include/uapi/linux/fs.h`).

use fuser::Errno;
use snowmelt_fs::vfs::{Vfs, Who};
use snowmelt_zpl::SetAttributes;

use crate::convert::errno;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Bytes of a `struct fsxattr`: extended flags, three words not used here, project ID at 12, padding.
const FSXATTR_LEN: usize = 28;
const FSXATTR_PROJECT: usize = 12;

/// Flags of `FS_IOC_SETFLAGS`, and the same flags of `FS_IOC_FSSETXATTR`: immutable, append-only, no dump, project
/// inheritance.
const EXTENDED: [(u32, u32); 4] = [(0x10, 0x8), (0x20, 0x10), (0x40, 0x80), (0x2000_0000, 0x200)];

fn to_extended(flags: u32) -> u32 {
    EXTENDED.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, extended)| all | extended)
}

fn from_extended(flags: u32) -> Option<u32> {
    let known = EXTENDED.iter().fold(0, |all, (_, extended)| all | extended);
    let plain =
        EXTENDED.iter().filter(|(_, extended)| flags & extended != 0).fold(0, |all, (flag, _)| all | flag);
    (flags & !known == 0).then_some(plain)
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// The answer to the kernel.
pub(crate) fn ioctl(vfs: &Vfs, ino: u64, command: u32, data: &[u8], who: Who) -> Result<Vec<u8>, Errno> {
    let set = |changes: SetAttributes| match vfs.set_attributes(ino, &changes, who) {
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(errno(&error)),
    };
    match command {
        FS_IOC_GETFLAGS => {
            let stat = vfs.stat(ino).map_err(|error| errno(&error))?;
            Ok(stat.attributes.flags.fs_ioc_flags().to_ne_bytes().to_vec())
        }
        FS_IOC_FSGETXATTR => {
            let stat = vfs.stat(ino).map_err(|error| errno(&error))?;
            let mut answer = vec![0; FSXATTR_LEN];
            let flags = to_extended(stat.attributes.flags.fs_ioc_flags());
            answer[..4].copy_from_slice(&flags.to_ne_bytes());
            let project = u32::try_from(stat.attributes.project_id).unwrap_or(u32::MAX);
            answer[FSXATTR_PROJECT..FSXATTR_PROJECT + 4].copy_from_slice(&project.to_ne_bytes());
            Ok(answer)
        }
        FS_IOC_SETFLAGS => {
            let flags = word(data, 0).ok_or(Errno::EINVAL)?;
            set(SetAttributes { fs_ioc_flags: Some(flags), ..SetAttributes::default() })
        }
        FS_IOC_FSSETXATTR => {
            let extended = word(data, 0).ok_or(Errno::EINVAL)?;
            let project = word(data, FSXATTR_PROJECT).ok_or(Errno::EINVAL)?;
            let flags = from_extended(extended).ok_or(Errno::EOPNOTSUPP)?;
            let stat = vfs.stat(ino).map_err(|error| errno(&error))?;
            let changed = u64::from(project) != stat.attributes.project_id;
            set(SetAttributes {
                fs_ioc_flags: Some(flags),
                project_id: changed.then_some(project),
                ..SetAttributes::default()
            })
        }
        _ => Err(Errno::ENOTTY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_two_forms() {
        for (plain, extended) in EXTENDED {
            assert_eq!(to_extended(plain), extended);
            assert_eq!(from_extended(extended), Some(plain));
        }
        assert_eq!(from_extended(0x8000), None);
    }
}
