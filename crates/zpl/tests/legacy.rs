//! Filesystems of ZPL versions without system attributes, in both byte orders.

#![allow(clippy::unwrap_used)]

#[path = "common/build.rs"]
mod build;

use build::{Builder, ROOT, Znode, bytes64};
use snowmelt_zpl::{Endian, FileKind, Filesystem, ZplError};

#[test]
fn znodes_directories_and_links() {
    for endian in [Endian::Little, Endian::Big] {
        let mut builder = Builder::new(endian);
        builder.directory(ROOT, ROOT, &[(b"file", 10), (b"link", 11), (b"long", 12), (b"tty", 13)]);
        builder.file(10, Znode { mode: 0o104_755, ..Znode::default() }, b"content");
        builder.symlink(11, b"file");
        let target = [b'x'; 300];
        let bonus = builder.znode(Znode { mode: 0o120_777, size: 300, ..Znode::default() });
        builder.put(12, 19, 17, bonus, &target);
        let mut bonus = builder.znode(Znode { mode: 0o020_620, ..Znode::default() });
        bonus[112..120].copy_from_slice(&bytes64(endian, 5 << 20 | 1));
        builder.put(13, 19, 17, bonus, &[]);

        let fs = Filesystem::open(builder.objects).unwrap();
        assert_eq!((fs.version(), fs.root()), (3, ROOT));
        let root = fs.attributes(ROOT).unwrap();
        assert_eq!((root.kind(), root.links, root.parent), (FileKind::Directory, 2, ROOT));
        let file = fs.attributes(fs.lookup(ROOT, b"file").unwrap().unwrap().object).unwrap();
        assert_eq!((file.permissions(), file.uid, file.gid, file.size), (0o4755, 1000, 1001, 7));
        assert_eq!((file.atime.seconds, file.mtime.seconds, file.ctime.seconds), (900, 950, 1000));
        let mut buf = [0; 20];
        assert_eq!(fs.read(10, file.size, 3, &mut buf).unwrap(), 4);
        assert_eq!(&buf[..5], b"tent\0");
        assert_eq!(fs.readlink(11).unwrap(), b"file");
        assert_eq!(fs.readlink(12).unwrap(), target);
        assert_eq!(fs.attributes(13).unwrap().rdev, Some((5, 1)));
        assert!(matches!(fs.readlink(10), Err(ZplError::NotASymlink { object: 10 })));
        assert!(matches!(fs.lookup(10, b"x"), Err(ZplError::NotADirectory { object: 10 })));
        assert!(matches!(fs.attributes(99), Err(ZplError::NoObject { object: 99 })));
        assert!(fs.xattrs(10).unwrap().is_empty());
        // The ACL is empty, because the builder writes none.
        assert!(fs.nfs4_acl(10).unwrap().is_empty());
    }
}

#[test]
fn objsets_that_are_no_filesystem_are_refused() {
    let mut builder = Builder::new(Endian::Little);
    builder.put(1, 23, 0, Vec::new(), &[0; 512]);
    assert!(matches!(Filesystem::open(&builder.objects), Err(ZplError::Corrupt { object: 1, .. })));
    builder.objects.objects.clear();
    assert!(matches!(Filesystem::open(&builder.objects), Err(ZplError::NoObject { object: 1 })));
    let mut builder = Builder::new(Endian::Little);
    let names: [(&[u8], u64); 2] = [(b"ROOT", ROOT), (b"VERSION", 6)];
    builder.put(1, 21, 0, Vec::new(), &build::micro_zap(Endian::Little, &names));
    assert!(matches!(Filesystem::open(&builder.objects), Err(ZplError::Unsupported { .. })));
}
