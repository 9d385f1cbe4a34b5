//! Entry points for fuzzing. The peer sends arbitrary bytes, and the tree that is served is small and in memory.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use crate::Names;
use crate::client::{Login, Observer, Told, Wishes, greet};
use crate::daemon::{Config, Daemon, Link, OpenPath};
use crate::filter::Filter;
use crate::flist::{ListForm, ListReader};
use crate::index::changed_paths;
use crate::options::Options;
use crate::receiver::{Into, Terms};
use crate::scan::{Called, View};
use crate::session::{Receiving, Surroundings, receive, serve};
use crate::source::{Content, IndexedSource, Metadata, Source, kind};
use crate::target::Target;
use crate::token::{Compressor, Token, TokenReader};
use crate::wire::Patience;

/// The most bytes of content or blocks that are processed.
const CONTENT_MAX: usize = 16 << 20;
/// The number of bytes that a block counts for. rsync has no shorter blocks.
const BLOCK_LEN: usize = 700;
/// The most files of an index that are looked up by name.
const LOOKED_AT_MAX: usize = 10_000;

/// A tree with the small files "a" and "d/b".
struct Tree;

fn metadata_of(path: &[u8]) -> io::Result<Metadata> {
    let mode = match path {
        b"" | b"d" => kind::DIRECTORY | 0o755,
        b"a" | b"d/b" => kind::FILE | 0o644,
        b"l" => kind::SYMLINK | 0o777,
        _ => return Err(rustix::io::Errno::NOENT.into()),
    };
    Ok(Metadata { mode, size: 5000, links: 2, id: (0, u64::from(path == b"d")), ..Metadata::default() })
}

impl Source for Tree {
    fn metadata(&self, path: &[u8], _follow: bool) -> io::Result<Metadata> {
        metadata_of(path)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let names: &[&[u8]] = match path {
            b"" => &[b"a", b"d", b"l"],
            b"d" => &[b"b"],
            _ => return Err(rustix::io::Errno::NOTDIR.into()),
        };
        let full = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
        Ok(names.iter().map(|name| (name.to_vec(), metadata_of(&full(name)))).collect())
    }

    fn read_link(&self, _path: &[u8]) -> io::Result<Vec<u8>> {
        Ok(b"../a".to_vec())
    }

    fn open(&self, path: &[u8], _follow: bool) -> io::Result<Box<dyn Content>> {
        metadata_of(path)?;
        Ok(Box::new(Bytes(Cursor::new(b"hello".repeat(1000)))))
    }

    fn xattrs(&self, _path: &[u8], _follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let acl = [2_u8, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff];
        Ok([(b"user.a".to_vec(), vec![7; 40]), (b"system.posix_acl_access".to_vec(), acl.to_vec())].into())
    }
}

struct Bytes(Cursor<Vec<u8>>);

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Content for Bytes {
    fn size(&self) -> u64 {
        self.0.get_ref().len() as u64
    }

    fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        self.0.set_position(offset);
        Ok(())
    }
}

impl OpenPath for Tree {
    fn open(&self, _path: &str) -> Result<Arc<dyn Source>, String> {
        Ok(Arc::new(Tree))
    }
}

/// A client of the daemon from its greeting on, with and without a proxy.
pub fn connection(data: &[u8]) {
    const MODULES: &str = "[m]\npath = tank/a\nexclude = /x\nrefuse options = hard-links\n\
                           [s]\npath = tank/b\nauth users = joe\nsecrets file = /none\n\
                           [v]\npath = tank/%RSYNC_HOST_ADDR%\ncomment = %RSYNC_PID%\n";
    for behind in ["", "proxy protocol = yes\n"] {
        let Ok(config) = Config::parse(&format!("{behind}{MODULES}"), Path::new("rsyncd.conf")) else {
            return;
        };
        let daemon = Daemon::new(config, Box::new(Tree), Box::new(|_, _| {}));
        let link = Link::new(Cursor::new(data.to_vec()), io::sink());
        let _ = daemon.serve_link(link, IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}

/// A client after its arguments, from the negotiation on. Its messages have arbitrary content. The first two bytes
/// choose the options.
pub fn session(data: &[u8]) {
    let Some(([first, second], rest)) = data.split_first_chunk::<2>().map(|(head, rest)| (*head, rest))
    else {
        return;
    };
    let args = [
        &b"--server"[..],
        b"--sender",
        if first & 1 == 0 { b"-logDtpre.iLsfxCIvu" } else { b"-HAXlogDtprUe.LfxC" },
        if first & 2 == 0 { b"--checksum-choice=md5" } else { b"--checksum-choice=xxh128" },
        if first & 4 == 0 { b"--inplace" } else { b"--append" },
        if first & 8 == 0 { b"--compress-choice=zlib" } else { b"--compress-choice=none" },
        if first & 16 == 0 { b"--partial" } else { b"--files-from=-" },
        b".",
        b"m/",
    ];
    let (options, failure) = Options::parse(&args.map(<[u8]>::to_vec));
    // Wraps the bytes in data messages. The second byte sets their length.
    let mut wire = Vec::new();
    for piece in rest.chunks(usize::from(second) + 1) {
        wire.extend((piece.len() as u32 | 7 << 24).to_le_bytes());
        wire.extend(piece);
    }
    let (names, hidden) = (Names::default(), Filter::default());
    let surroundings = Surroundings {
        view: View {
            source: &Tree,
            hidden: &hidden,
            called: Called::Module("m"),
            munged: true,
            keeps_outward_links: true,
        },
        names,
        paths: vec![Vec::new()],
        timeout_seconds: 0,
        patience: Patience::default(),
        seed: 7,
        on_file: &mut |_| {},
    };
    let _ = serve(32, (wire.as_slice(), io::sink()), (&options, failure), surroundings);
}

/// Checks an index without its digest. If the index is valid, all of it can be read.
pub fn index(data: &[u8]) {
    let Ok(index) = crate::index::parse_unchecked(data.to_vec()) else { return };
    let source = IndexedSource::new(Arc::new(index), "/nonexistent");
    let mut left = vec![Vec::new()];
    let mut looked_at = 0;
    while let Some(path) = left.pop().filter(|_| looked_at < LOOKED_AT_MAX) {
        for (name, metadata) in source.read_dir(&path).unwrap_or_default() {
            looked_at += 1;
            let path = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
            let (found, metadata) = (source.metadata(&path, false).ok(), metadata.ok());
            assert_eq!(found, metadata, "what is listed is found by its name");
            let _ = (source.xattrs(&path, true), source.read_link(&path), source.metadata(&path, true));
            if metadata.is_some_and(|metadata| metadata.is_dir()) {
                left.push(path);
            }
        }
    }
}

/// A line of a log.
pub fn changed(data: &[u8]) {
    assert!(changed_paths(data).iter().all(|path| path.len() <= data.len()), "paths are parts of the line");
}

/// A configuration.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // The configuration must not read other files here.
    if ["from", "filter", "&"].iter().any(|names_files| text.to_lowercase().contains(names_files)) {
        return;
    }
    let Ok(config) = Config::parse(text, Path::new("rsyncd.conf")) else { return };
    for module in &config.modules {
        for value in ["joe", "a/b", "$(x)"] {
            let _ = module.for_connection(&|_| Some(value.to_owned()));
        }
    }
}

/// A file list that a client pushes. The first two bytes choose its form. No name that is read leads above the root.
pub fn list(data: &[u8]) {
    let Some(([first, second], mut rest)) = data.split_first_chunk::<2>().map(|(head, rest)| (*head, rest))
    else {
        return;
    };
    let is = |byte: u8, bit: u8| byte >> bit & 1 == 1;
    // Without incremental recursion, the bits for its options choose the version.
    let protocol = match (is(second, 0), is(second, 1), is(second, 2)) {
        (false, ..) => 32,
        (true, false, _) => 30,
        (true, true, is_older) => {
            if is_older {
                27
            } else {
                29
            }
        }
    };
    let is_old = protocol < 30;
    let form = ListForm {
        protocol,
        varint_flags: !is_old && !is(second, 1),
        error_end: !is_old,
        incremental: !is_old && is(second, 2),
        owner: is(first, 0),
        group: is(first, 1),
        links: is(first, 2),
        devices: is(first, 3),
        specials: is(first, 4),
        hard_links: is(first, 5),
        atimes: is(first, 6),
        acls: !is_old && is(first, 7),
        xattrs: !is_old && is(second, 3),
        numeric_ids: is(second, 4),
        recursive: true,
        zero_names: is(second, 5),
    };
    let digest_len = if is(second, 6) { 16 } else { 0 };
    let mut reader = ListReader::new(form, Names::default(), digest_len, is(second, 7));
    let Ok(list) = reader.read(0, &mut rest) else { return };
    for one in list.entries {
        let parts: Vec<&[u8]> = one.name.split(|byte| *byte == b'/').collect();
        assert!(one.name == b"." || parts.iter().all(|part| !matches!(*part, b"" | b"." | b"..")));
        let own = |id, is_user| reader.own(id, is_user);
        let _ = one
            .access
            .and_then(|acl| reader.access_acl(acl))
            .and_then(|acl| acl.access(one.metadata.mode, own));
        let _ = one.default.and_then(|acl| reader.default_acl(acl)).and_then(|acl| acl.default(own));
        assert!(one.xattrs.is_none_or(|set| reader.xattrs(set).iter().all(|one| !one.name.is_empty())));
    }
}

/// The content of a file. The first byte chooses its compression.
pub fn content(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let compressor = Compressor::ALL[usize::from(*first) % Compressor::ALL.len()];
    let Ok(mut reader) = TokenReader::new(compressor) else { return };
    reader.begin();
    let mut made = 0;
    while made < CONTENT_MAX {
        match reader.next(&mut rest) {
            Ok(Token::Literal) => match reader.literal(&mut rest) {
                Ok(literal) => made += literal.len().max(1),
                Err(_) => return,
            },
            Ok(Token::Block(_)) if reader.see(b"what there was").is_ok() => made += BLOCK_LEN,
            Ok(Token::Block(_) | Token::End) | Err(_) => return,
        }
    }
}

struct Nobody;

impl Observer for Nobody {
    fn message(&self, _line: &str) {}

    fn change(&self, _item: &str, _name: &str) {}
}

/// A client that pushes into a dataset, from the negotiation on. The first byte chooses the options.
pub fn push(data: &[u8], target: Box<dyn Target + '_>) {
    let Some((first, wire)) = data.split_first() else { return };
    let args = [
        &b"--server"[..],
        match first % 4 {
            0 => b"-logDtpre.iLsfxCIvu",
            1 => b"-HAXlogDtpre.iLsfxCIvu",
            2 => b"-HAXlogDtpre.LsfxCIvu",
            _ => b"-cHrte.iLsfxCIvu",
        },
        if first & 4 == 0 { b"--delete-during" } else { b"--partial" },
        if first & 8 == 0 { b"--inplace" } else { b"--append-verify" },
        b".",
        b"m/",
    ];
    let (options, _) = Options::parse(&args.map(<[u8]>::to_vec));
    let hidden = Filter::default();
    let receiving = Receiving {
        told: None,
        file_list: None,
        into: Into {
            target,
            path: Vec::new(),
            called: Called::Module("m"),
            hidden: &hidden,
            terms: Terms::default(),
        },
        names: Names::default(),
        timeout_seconds: 0,
        patience: Patience::default(),
        seed: 7,
    };
    let _ = receive(32, (wire, io::sink()), &options, receiving);
}

/// A server that a client pulls from into a dataset, from the negotiation on. The first byte chooses the options.
pub fn pull(data: &[u8], target: Box<dyn Target + '_>) {
    let Some((first, wire)) = data.split_first() else { return };
    let is = |bit: u8| first >> bit & 1 == 1;
    let wishes =
        Wishes { delete: is(0), checksum: is(1), compress: is(2), dry_run: is(3), ..Wishes::default() };
    let told = Arc::new(Told::new(Box::new(Nobody)));
    let _ = crate::client::pull(32, (wire, io::sink()), &wishes, &told, (target, "tank/home"));
}

/// A connection to a server. Its output is the data, and its input is discarded.
struct Server<'a>(&'a [u8]);

impl Read for Server<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Server<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The greeting of a daemon until a module is open, and the beginning of a server over a remote shell.
pub fn greeting(data: &[u8]) {
    let login = Login { module: "m", user: "joe", password: &|| Ok(b"secret".to_vec()), motd: &|_| {} };
    let _ = greet(&mut Server(data), &login);
    let _ = crate::client::begin_shell(&mut &*data, &mut io::sink());
}
