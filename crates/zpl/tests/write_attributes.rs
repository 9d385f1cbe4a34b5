//! Tests of modes, owners, times, extended attributes and ACLs.

#![allow(clippy::unwrap_used)]

#[path = "common/fsck.rs"]
mod fsck;
#[path = "common/writing.rs"]
mod writing;

use snowmelt_zpl::acl::{Entry, PosixAcl, Tag};
use snowmelt_zpl::{
    NewFilesystem, NewKind, NewNode, Objects, SetAttributes, SetTime, SetXattr, Timestamp, WriteOptions,
    XattrStore, ZfsFlags,
};
use writing::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(fs: &Fs, object: u64, set: SetAttributes) -> snowmelt_zpl::Attributes {
    fs.set_attributes(object, &set, &at(30)).unwrap()
}

fn spills(objects: &impl Objects, object: u64) -> bool {
    objects.dnode(object).unwrap().unwrap().has_spill
}

fn acl(entries: &[(Tag, u8)]) -> Vec<u8> {
    let entries = entries.iter().map(|(tag, permissions)| Entry { tag: *tag, permissions: *permissions });
    PosixAcl { entries: entries.collect() }.encode()
}

#[test]
fn what_is_set_is_told_and_the_rest_stays() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    let before = fs.attributes(f).unwrap();
    let time = |seconds| Timestamp { seconds, nanoseconds: 999_999_999 };
    let changed = set(
        &fs,
        f,
        SetAttributes {
            permissions: Some(0o4711),
            uid: Some(u32::MAX - 1),
            atime: Some(SetTime::To(time(-5))),
            mtime: Some(SetTime::Now),
            crtime: Some(time(1)),
            project_id: Some(9),
            fs_ioc_flags: Some(0x40),
            ..SetAttributes::default()
        },
    );
    assert_eq!(changed, fs.attributes(f).unwrap());
    assert_eq!((changed.permissions(), changed.uid, changed.gid), (0o4711, u32::MAX - 1, before.gid));
    assert_eq!((changed.atime, changed.mtime, changed.crtime), (time(-5), at(30).now, time(1)));
    assert_eq!((changed.ctime, changed.project_id), (at(30).now, 9));
    assert_eq!(changed.flags.fs_ioc_flags(), 0x40);
    assert!(changed.flags.contains(ZfsFlags::NO_EXECS_DENIED));
    assert_eq!(set(&fs, f, SetAttributes::default()), changed);
    let kept = set(&fs, f, SetAttributes { ctime: Some(time(77)), ..SetAttributes::default() });
    assert_eq!(kept.ctime, time(77));
    let bad = |set| errno(fs.set_attributes(f, &set, &at(31)));
    assert_eq!(bad(SetAttributes { fs_ioc_flags: Some(1), ..SetAttributes::default() }), EOPNOTSUPP);
    assert_eq!(bad(SetAttributes { project_id: Some(u32::MAX), ..SetAttributes::default() }), EINVAL);
    assert_eq!(bad(SetAttributes { size: Some(1 << 63), ..SetAttributes::default() }), EFBIG);
    fs.touch_atime(f, time(88)).unwrap();
    assert_eq!(fs.attributes(f).unwrap(), snowmelt_zpl::Attributes { atime: time(88), ..kept });
    fsck::check(&objects.snapshot());
}

#[test]
fn set_id_bits_are_cleared() {
    let (_, fs) = plain();
    let f = file(&fs, "f");
    for (before, after) in
        [(0o6777, 0o777), (0o2644, 0o2644), (0o2654, 0o654), (0o4644, 0o644), (0o755, 0o755)]
    {
        set(&fs, f, SetAttributes { permissions: Some(before), ..SetAttributes::default() });
        let cleared = set(&fs, f, SetAttributes { clear_setid: true, ..SetAttributes::default() });
        assert_eq!(cleared.permissions(), after, "{before:o}");
    }
}

#[test]
fn size_is_set_with_the_rest() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    fs.write(f, 0, b"0123456789", &at(11)).unwrap();
    let changed = set(
        &fs,
        f,
        SetAttributes {
            size: Some(4),
            permissions: Some(0o600),
            clear_setid: true,
            ..SetAttributes::default()
        },
    );
    assert_eq!((changed.size, changed.permissions(), changed.mtime), (4, 0o600, at(30).now));
    set(&fs, f, SetAttributes { size: Some(6), ..SetAttributes::default() });
    assert_eq!(content(&objects, f), b"0123\0\0");
    let dir = directory(&fs, "dir");
    let resize = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(errno(fs.set_attributes(dir, &resize, &at(31))), EISDIR);
}

#[test]
fn values_of_every_size_around_the_limits() {
    for slots in [1u8, 2] {
        let options = WriteOptions { dnode_slots: slots, ..WriteOptions::default() };
        let (objects, fs) = make(NewFilesystem::default(), options);
        let f = file(&fs, "f");
        let mut first_spill = None;
        for len in (0..800usize).chain([4000, 32_767, 32_768, 32_769, 65_535, 65_536]) {
            let value: Vec<u8> = (0..len).map(|n| n as u8).collect();
            fs.set_xattr(f, b"user.v", &value, SetXattr::Any, &at(20)).unwrap();
            assert_eq!(fs.xattr(f, b"user.v").unwrap(), Some(value), "{len}");
            let hidden = fs.attributes(f).unwrap().xattr_object.is_some();
            assert_eq!(hidden, len > 32_768, "{len}");
            if spills(&objects, f) {
                first_spill.get_or_insert(len);
            } else if len < 32_769 {
                assert_eq!(first_spill, None, "{len}");
            }
        }
        // The bonus buffer also holds 168 bytes of other attributes, a header for two lengths, and 48 bytes around the
        // value.
        let room = 512 * usize::from(slots) - 192;
        assert_eq!(first_spill, Some((room - 168 - 16 - 48) / 4 * 4 + 1));
        fsck::check(&objects.snapshot());
        // A short value moves back into the bonus buffer.
        fs.set_xattr(f, b"user.v", b"short", SetXattr::Replace, &at(21)).unwrap();
        assert!(!spills(&objects, f));
        fs.remove_xattr(f, b"user.v", &at(22)).unwrap();
        assert!(fs.xattrs(f).unwrap().is_empty());
        fsck::check(&objects.snapshot());
    }
}

#[test]
fn many_values_overflow_into_the_hidden_directory() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    let name = |n: usize| format!("user.value {n}").into_bytes();
    for n in 0..40 {
        fs.set_xattr(f, &name(n), &vec![n as u8; 8000], SetXattr::Create, &at(20)).unwrap();
    }
    assert!(fs.attributes(f).unwrap().xattr_object.is_some() && spills(&objects, f));
    let all = fs.xattrs(f).unwrap();
    assert_eq!(all.len(), 40);
    assert!((0..40).all(|n| all[&name(n)] == vec![n as u8; 8000]));
    fsck::check(&objects.snapshot());
    for n in 0..40 {
        fs.remove_xattr(f, &name(n), &at(21)).unwrap();
        assert_eq!(errno(fs.remove_xattr(f, &name(n), &at(21))), ENODATA);
    }
    assert!(fs.xattrs(f).unwrap().is_empty() && !spills(&objects, f));
    fsck::check(&objects.snapshot());
    fs.set_xattr(f, b"user.large", &vec![1; 60_000], SetXattr::Create, &at(22)).unwrap();
    fs.unlink(fs.root(), b"f", &at(23), unused).unwrap();
    fsck::check(&objects.snapshot());
}

#[test]
fn the_hidden_directory_belongs_to_the_owner() {
    let options = WriteOptions { xattr: XattrStore::Dir, ..WriteOptions::default() };
    let (objects, fs) = make(NewFilesystem::default(), options);
    let f = file(&fs, "f");
    fs.set_xattr(f, b"user.a", b"1", SetXattr::Any, &at(20)).unwrap();
    fs.set_xattr(f, b"user.b", b"2", SetXattr::Any, &at(20)).unwrap();
    set(&fs, f, SetAttributes { uid: Some(55), gid: Some(66), ..SetAttributes::default() });
    let hidden = fs.attributes(f).unwrap().xattr_object.unwrap();
    let attributes = fs.attributes(hidden).unwrap();
    assert_eq!((attributes.uid, attributes.gid, attributes.mode), (55, 66, 0o041_777));
    fsck::check(&objects.snapshot());
    // A new value is stored where the current property says, and in one place only.
    fs.set_options(WriteOptions::default()).unwrap();
    fs.set_xattr(f, b"user.a", b"3", SetXattr::Replace, &at(21)).unwrap();
    assert_eq!(fs.attributes(hidden).unwrap().size, 3);
    fs.set_options(options).unwrap();
    fs.set_xattr(f, b"user.a", b"4", SetXattr::Replace, &at(21)).unwrap();
    assert_eq!(fs.attributes(hidden).unwrap().size, 4);
    let all: Vec<_> = fs.xattrs(f).unwrap().into_values().collect();
    assert_eq!(all, [b"4", b"2"]);
    fsck::check(&objects.snapshot());
}

#[test]
fn impossible_attributes_are_refused() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    let before = format!("{:?}", objects.snapshot());
    let set = |name: &[u8], value: &[u8], how| errno(fs.set_xattr(f, name, value, how, &at(20)));
    assert_eq!(set(b"user.x", &[0; 65_537], SetXattr::Any), E2BIG);
    assert_eq!(set(&[&b"user."[..], &[b'x'; 251]].concat(), b"", SetXattr::Any), ERANGE);
    assert_eq!(set(b"user.", b"", SetXattr::Any), EOPNOTSUPP);
    assert_eq!(set(b"other.x", b"", SetXattr::Any), EOPNOTSUPP);
    assert_eq!(set(b"system.nfs4_acl_xdr", b"", SetXattr::Any), EOPNOTSUPP);
    assert_eq!(set(b"user.x", b"", SetXattr::Replace), ENODATA);
    assert_eq!(set(ACCESS, b"nonsense", SetXattr::Any), EINVAL);
    assert_eq!(
        set(DEFAULT, &acl(&[(Tag::UserObj, 7), (Tag::GroupObj, 7), (Tag::Other, 7)]), SetXattr::Any),
        ENOTDIR
    );
    assert_eq!(errno(fs.remove_xattr(f, b"user.x", &at(20))), ENODATA);
    assert_eq!(format!("{:?}", objects.snapshot()), before);
    fs.set_xattr(f, &[&b"user."[..], &[b'x'; 250]].concat(), b"", SetXattr::Create, &at(20)).unwrap();
    assert_eq!(set(&[&b"user."[..], &[b'x'; 250]].concat(), b"", SetXattr::Create), EEXIST);
    let link = create(&fs, fs.root(), "link", NewKind::Symlink(b"f"));
    assert_eq!(errno(fs.set_xattr(link, b"user.x", b"", SetXattr::Any, &at(20))), EPERM);
    fs.set_xattr(link, b"trusted.x", b"", SetXattr::Any, &at(20)).unwrap();
    fs.set_options(WriteOptions { xattr: XattrStore::Off, ..fs.options() }).unwrap();
    assert_eq!(set(b"user.y", b"", SetXattr::Any), EOPNOTSUPP);
    fs.set_xattr(f, b"security.y", b"", SetXattr::Any, &at(20)).unwrap();
    fsck::check(&objects.snapshot());
}

#[test]
fn modes_and_acls_follow_each_other() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    let extended =
        acl(&[(Tag::UserObj, 6), (Tag::User(1001), 7), (Tag::GroupObj, 4), (Tag::Mask, 7), (Tag::Other, 0)]);
    fs.set_xattr(f, ACCESS, &extended, SetXattr::Any, &at(20)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().permissions(), 0o670);
    assert_eq!(fs.xattr(f, ACCESS).unwrap(), Some(extended));
    set(&fs, f, SetAttributes { permissions: Some(0o1731), ..SetAttributes::default() });
    let expected =
        acl(&[(Tag::UserObj, 7), (Tag::User(1001), 7), (Tag::GroupObj, 4), (Tag::Mask, 3), (Tag::Other, 1)]);
    assert_eq!(fs.xattr(f, ACCESS).unwrap(), Some(expected));
    // An ACL that is equivalent to the mode is not stored.
    let minimal = acl(&[(Tag::UserObj, 6), (Tag::GroupObj, 0), (Tag::Other, 4)]);
    fs.set_xattr(f, ACCESS, &minimal, SetXattr::Any, &at(21)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().permissions(), 0o1604);
    assert_eq!(fs.xattr(f, ACCESS).unwrap(), None);
    fs.remove_xattr(f, ACCESS, &at(22)).unwrap();
    // The NFSv4 ACL follows. owner@ lacks a permission that everyone@ has, so there is a denial.
    assert_eq!(fs.nfs4_acl(f).unwrap().len(), 5);
    fsck::check(&objects.snapshot());
}

#[test]
fn default_acls_are_passed_on() {
    let options = WriteOptions { posix_acl: true, ..WriteOptions::default() };
    let (objects, fs) = make(NewFilesystem::default(), options);
    let dir = directory(&fs, "dir");
    let default =
        acl(&[(Tag::UserObj, 7), (Tag::User(1001), 7), (Tag::GroupObj, 5), (Tag::Mask, 7), (Tag::Other, 5)]);
    fs.set_xattr(dir, DEFAULT, &default, SetXattr::Any, &at(20)).unwrap();
    let caller = snowmelt_zpl::Caller { umask: 0o077, ..at(21) };
    let made = |name: &[u8], kind, permissions| {
        fs.create(dir, name, NewNode { kind, permissions }, &caller).unwrap()
    };
    let sub = made(b"sub", NewKind::Directory, 0o777);
    assert_eq!(sub.permissions(), 0o775);
    assert_eq!(fs.xattr(sub.object, DEFAULT).unwrap(), Some(default.clone()));
    assert_eq!(fs.xattr(sub.object, ACCESS).unwrap(), Some(default));
    let leaf = made(b"leaf", NewKind::File, 0o664);
    assert_eq!(leaf.permissions(), 0o664);
    let expected =
        acl(&[(Tag::UserObj, 6), (Tag::User(1001), 7), (Tag::GroupObj, 5), (Tag::Mask, 6), (Tag::Other, 4)]);
    assert_eq!(fs.xattr(leaf.object, ACCESS).unwrap(), Some(expected));
    assert_eq!(fs.xattr(leaf.object, DEFAULT).unwrap(), None);
    let link = made(b"link", NewKind::Symlink(b"x"), 0o777);
    assert_eq!(link.permissions(), 0o777);
    assert!(fs.xattrs(link.object).unwrap().is_empty());
    fs.remove_xattr(dir, DEFAULT, &at(22)).unwrap();
    assert_eq!(made(b"private", NewKind::File, 0o666).permissions(), 0o600);
    fsck::check(&objects.snapshot());
}
