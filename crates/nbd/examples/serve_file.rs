//! Serves a raw disk image on a Unix socket: `serve_file IMAGE SOCKET`. It is a minimal example of an export, and a
//! benchmark for comparison with qemu-nbd, which serves the same file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use snowmelt_nbd::{Export, Exports, Extent, Identity, Listener, OpenError, Options, Server, Shutdown};

struct Image {
    file: File,
    size: u64,
}

impl Export for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn block_size(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool) -> io::Result<()> {
        let how = if may_trim { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        Ok(fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, length)?)
    }

    fn zeroes_fast(&self, _offset: u64, _length: u64, _may_trim: bool) -> bool {
        true
    }

    fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length, true)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn cache(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let data = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(vec![Extent { length, hole: true, zero: true }]),
            Err(error) => return Err(error.into()),
        };
        if data > offset {
            return Ok(vec![Extent { length: data - offset, hole: true, zero: true }]);
        }
        let end = seek(&self.file, SeekFrom::Hole(offset))?;
        Ok(vec![Extent { length: end - offset, hole: false, zero: false }])
    }
}

struct One(Arc<Image>);

impl Exports for One {
    fn list(&self, _client: &Identity) -> io::Result<Vec<String>> {
        Ok(vec!["image".to_owned()])
    }

    fn open(&self, _client: &Identity, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        if name == "image" { Ok(Arc::clone(&self.0) as Arc<dyn Export>) } else { Err(OpenError::NotFound) }
    }

    fn default_export(&self, _client: &Identity) -> Option<String> {
        Some("image".to_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [image, socket] = &args[..] else { return Err("usage: serve_file IMAGE SOCKET".into()) };
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let size = file.metadata()?.len();
    let exports = Arc::new(One(Arc::new(Image { file, size })));
    let listener = Listener::unix(Path::new(socket))?;
    Server::new(exports, Options::default())?.serve(vec![listener], &Shutdown::new())?;
    Ok(())
}
