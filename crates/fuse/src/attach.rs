//! Mounting: by the system call for root, by `fusermount3` for others; and the first exchange with the kernel.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use fuser::InitFlags;
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, mount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use crate::kernel::TRANSFER_MAX;

/// Bits of a mode with the type of the file (`S_IFMT`).
const FORMAT: u32 = 0o170_000;

/// `FUSE_INIT`, and room for it: the kernel does not let a reader have less (`FUSE_MIN_READ_BUFFER`).
const INIT: u32 = 26;
const INIT_MAX: usize = 64 << 10;
/// Bytes of the answer: `struct fuse_out_header` and `struct fuse_init_out`.
const INIT_OUT: u32 = 16 + 64;
/// Versions of the protocol: the version used here, and the oldest version that the kernel may have (Linux 4.20).
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
const MINOR_MIN: u32 = 28;
/// What everybody wants.
const DEFAULTS: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_INIT_EXT);
/// Granularity of times.
const NANOSECOND: u32 = 1;

/// How something is to be mounted.
#[derive(Debug, Clone)]
pub(crate) struct Attach<'a> {
    /// The source in the table of mounts.
    pub(crate) name: &'a str,
    /// The subtype: the type is `fuse.` and this.
    pub(crate) subtype: &'a str,
    /// Flags of mount(2).
    pub(crate) flags: MountFlags,
    /// Users other than the one who mounts may use it.
    pub(crate) allow_other: bool,
    /// Largest read of a file that the kernel asks for at once, bytes.
    pub(crate) read_max: u32,
}

/// The settings for the kernel, sent in the first exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wants {
    /// What this kernel does not know it cannot be asked for, and is no worse without.
    pub(crate) flags: InitFlags,
    /// Maximum size of the kernel's read-ahead in bytes; `None` for the kernel's default.
    pub(crate) read_ahead: Option<u32>,
    /// Maximum number of background requests.
    pub(crate) background: u16,
}

impl Attach<'_> {
    /// Mounts on a directory, and agrees with the kernel on how to talk. Returns the device to read requests from.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn attach(&self, dir: &Path, wants: &Wants) -> io::Result<OwnedFd> {
        let device = match self.mount(dir) {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => self.ask_helper(dir)?,
            mounted => mounted?,
        };
        if let Err(error) = agree(&device, wants) {
            let _ = crate::unmount::unmount_at(dir, true);
            return Err(error);
        }
        Ok(device)
    }

    fn mount(&self, dir: &Path) -> io::Result<OwnedFd> {
        let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse")?.into();
        self.mount_device(device.as_fd(), dir)?;
        Ok(device)
    }

    /// Mounts the filesystem of this device in one more place, with the same files. Kernels before 5.15 refuse this.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn mount_device(&self, device: BorrowedFd<'_>, dir: &Path) -> io::Result<()> {
        // The directory that is checked here is also the one that is mounted on, even if the path leads elsewhere by
        // then. Root does not follow links of other users.
        let place = snowmelt_store::open_named(dir)?;
        let mode = rustix::fs::fstat(&place)?.st_mode;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let options = format!(
            "fd={},rootmode={:o},user_id={},group_id={},{}",
            device.as_raw_fd(),
            mode & FORMAT,
            user.as_raw(),
            group.as_raw(),
            self.options()
        );
        let options = CString::new(options)?;
        let target = format!("/proc/self/fd/{}", place.as_raw_fd());
        Ok(mount(self.name, target.as_str(), "fuse", self.flags, Some(options.as_c_str()))?)
    }

    /// Options that the kernel and `fusermount3` understand.
    fn options(&self) -> String {
        let other = if self.allow_other { ",allow_other" } else { "" };
        format!("default_permissions,max_read={},subtype={}{other}", self.read_max, self.subtype)
    }

    /// `fusermount3` mounts for users without the right to mount, and sends the device through a socket.
    fn ask_helper(&self, dir: &Path) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let flags =
            [(MountFlags::RDONLY, "ro"), (MountFlags::NOEXEC, "noexec"), (MountFlags::NOATIME, "noatime")];
        let mut options = format!("fsname={},{}", escape(self.name), self.options());
        for (_, word) in flags.iter().filter(|(flag, _)| self.flags.contains(*flag)) {
            options.push(',');
            options.push_str(word);
        }
        let mut helper = Command::new("fusermount3");
        helper.arg("-o").arg(options).arg("--").arg(dir);
        helper.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
        let helper = helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        drop(theirs);
        let received = receive(&ours);
        let output = helper.wait_with_output()?;
        match received? {
            Some(device) => Ok(device),
            None => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}

/// `FUSE_INIT`, the first request: the kernel sends its features, and the answer selects from them.
fn agree(device: &OwnedFd, wants: &Wants) -> io::Result<()> {
    let mut buffer = vec![0; INIT_MAX];
    let length = loop {
        match rustix::io::read(device, buffer.as_mut_slice()) {
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
            read => break read?,
        }
    };
    let word = |at: usize| {
        let bytes = buffer.get(at..at + 4).filter(|_| at + 4 <= length)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let unusable = || io::Error::other("the kernel's FUSE is too old");
    let [opcode, major, minor, read_ahead, flags] =
        [4, 40, 44, 48, 52].map(|at| word(at).unwrap_or_default());
    if opcode != INIT || major != MAJOR || minor < MINOR_MIN {
        return Err(unusable());
    }
    let known = InitFlags::from_bits_retain(u64::from(flags));
    let more = if known.contains(InitFlags::FUSE_INIT_EXT) { word(56).unwrap_or_default() } else { 0 };
    let known = known | InitFlags::from_bits_retain(u64::from(more) << 32);
    let flags = (wants.flags | DEFAULTS) & known;
    let read_ahead = wants.read_ahead.map_or(read_ahead, |wanted| wanted.min(read_ahead));
    let unique = buffer.get(8..16).unwrap_or_default();
    let pages = (TRANSFER_MAX as usize).div_ceil(rustix::param::page_size()) as u16;
    let words = [MAJOR, MINOR, read_ahead, flags.bits() as u32];
    let mut answer = INIT_OUT.to_ne_bytes().to_vec();
    answer.extend(0_i32.to_ne_bytes());
    answer.extend(unique);
    answer.extend(words.map(u32::to_ne_bytes).concat());
    answer.extend([wants.background, wants.background / 4 * 3].map(u16::to_ne_bytes).concat());
    answer.extend([TRANSFER_MAX, NANOSECOND].map(u32::to_ne_bytes).concat());
    answer.extend([pages, 0].map(u16::to_ne_bytes).concat());
    answer.extend(((flags.bits() >> 32) as u32).to_ne_bytes());
    answer.resize(INIT_OUT as usize, 0);
    rustix::io::write(device, &answer)?;
    Ok(())
}

/// Commas and backslashes in an option's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// The descriptor that comes through a socket, if one does.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let mut found = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            found = descriptors.last().or(found);
        }
    }
    Ok(found)
}
