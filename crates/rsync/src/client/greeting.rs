//! The text lines at the start of a connection to a daemon, until a module is open (docs/format/rsync.md, "The
//! daemon").

use std::io::{Read, Write};

use super::told::clean;
use crate::daemon::AuthDigest;
use crate::error::{ExitCode, Result, RsyncError};
use crate::session::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::wire::ReadWire;

/// Length of the longest line in bytes, and the most lines before a module is open.
const LINE_MAX: usize = 4096;
const LINES_MAX: usize = 4096;

/// The module to open, and the login for it.
pub struct Login<'a> {
    /// The module.
    pub module: &'a str,
    /// The name of the user to log in as.
    pub user: &'a str,
    /// Returns the password. It is called only when the daemon asks for one.
    pub password: &'a dyn Fn() -> std::result::Result<Vec<u8>, String>,
    /// Called with each line of the message of the day.
    pub motd: &'a dyn Fn(&str),
}

fn refused(message: impl Into<String>) -> RsyncError {
    RsyncError::refused(ExitCode::StartClient, message)
}

/// Opens a module and returns the protocol version to use from there on. Nothing is read beyond the line that says that
/// the module is open.
///
/// # Errors
/// When the connection fails, when the other side is not an rsync daemon, or when it refuses.
pub fn greet(stream: &mut (impl Read + Write), login: &Login<'_>) -> Result<u8> {
    let names = AuthDigest::names();
    say(stream, &format!("@RSYNCD: {PROTOCOL_MAX}.0 {names}\n"))?;
    let greeting = line(stream)?;
    let (theirs, digests) = version(&greeting)?;
    if theirs < PROTOCOL_MIN {
        return Err(RsyncError::refused(
            ExitCode::Protocol,
            format!("the daemon speaks version {theirs} of the protocol, which is older than {PROTOCOL_MIN}"),
        ));
    }
    say(stream, &format!("{}\n", login.module))?;
    for _ in 0..LINES_MAX {
        let line = line(stream)?;
        match line.split_once(' ') {
            Some(("@RSYNCD:", "OK")) => return Ok(theirs.min(PROTOCOL_MAX)),
            Some(("@RSYNCD:", "EXIT")) => return Err(refused("the daemon ended without opening a module")),
            Some(("@ERROR:" | "@ERROR", why)) => return Err(refused(format!("the daemon says: {why}"))),
            Some(("@RSYNCD:", rest)) if rest.starts_with("AUTHREQD ") => {
                let challenge = rest.trim_start_matches("AUTHREQD ");
                let digest = AuthDigest::of_server(&digests, theirs).ok_or_else(|| {
                    refused("the daemon wants a password by none of the digests known here")
                })?;
                let password = (login.password)().map_err(refused)?;
                say(stream, &format!("{} {}\n", login.user, digest.answer(&password, challenge)))?;
            }
            _ if line.starts_with("@ERROR") => return Err(refused(format!("the daemon says: {line}"))),
            _ => (login.motd)(&line),
        }
    }
    Err(refused("the daemon says too much"))
}

fn say(stream: &mut impl Write, line: &str) -> Result<()> {
    stream.write_all(line.as_bytes())?;
    Ok(stream.flush()?)
}

fn line(stream: &mut impl Read) -> Result<String> {
    let mut line = Vec::new();
    loop {
        match stream.read_u8()? {
            b'\n' => return Ok(clean(line.strip_suffix(b"\r").unwrap_or(&line))),
            byte if line.len() < LINE_MAX => line.push(byte),
            _ => return Err(refused("a line of the daemon is too long")),
        }
    }
}

/// The version and the password digests in a line such as `@RSYNCD: 32.0 sha512 md5`.
fn version(greeting: &str) -> Result<(u8, Vec<&str>)> {
    let parse = || {
        let mut words = greeting.strip_prefix("@RSYNCD: ")?.split_whitespace();
        let (version, before) = words.next().map(|word| word.split_once('.').unwrap_or((word, "0")))?;
        let version: u8 = version.parse().ok()?;
        // A version that is not final works only between two programs of the same build.
        Some((if before == "0" { version } else { version.saturating_sub(1) }, words.collect()))
    };
    parse().ok_or_else(|| {
        RsyncError::refused(ExitCode::StartClient, format!("this is no rsync daemon: it says '{greeting}'"))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{self, Cursor};

    use super::*;

    struct Both(Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Both {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Both {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.1.write(data)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn greeted(says: &[u8]) -> (Result<u8>, String, Vec<String>, Vec<u8>) {
        let mut both = Both(Cursor::new(says.to_vec()), Vec::new());
        let motd = RefCell::new(Vec::new());
        let login = Login {
            module: "pub",
            user: "joe",
            password: &|| Ok(b"secret".to_vec()),
            motd: &|line| motd.borrow_mut().push(line.to_owned()),
        };
        let result = greet(&mut both, &login);
        let mut rest = Vec::new();
        both.0.read_to_end(&mut rest).unwrap();
        (result, String::from_utf8(both.1).unwrap(), motd.into_inner(), rest)
    }

    #[test]
    fn a_module_is_opened() {
        let (version, said, motd, rest) =
            greeted(b"@RSYNCD: 31.0 sha512 sha256 sha1 md5 md4\nHello\x1b[1m\n\n@RSYNCD: OK\nrest");
        assert_eq!((version.unwrap(), said.lines().nth(1).unwrap()), (31, "pub"));
        assert_eq!((motd, rest), (vec!["Hello?[1m".to_owned(), String::new()], b"rest".to_vec()));
        // The same answer as stock rsync's client gives.
        let (version, said, ..) = greeted(b"@RSYNCD: 31.0 md5 md4\n@RSYNCD: AUTHREQD abc\n@RSYNCD: OK\n");
        assert_eq!(version.unwrap(), 31);
        assert_eq!(
            said.lines().nth(2).unwrap(),
            format!("joe {}", AuthDigest::of_server(&["md5"], 31).unwrap().answer(b"secret", "abc"))
        );
        // Older daemons name no digests.
        let (version, said, ..) = greeted(b"@RSYNCD: 29\n@RSYNCD: AUTHREQD abc\n@RSYNCD: OK\n");
        assert_eq!(version.unwrap(), 29);
        assert_eq!(
            said.lines().nth(2).unwrap(),
            format!("joe {}", AuthDigest::of_server(&["md4"], 31).unwrap().answer(b"secret", "abc"))
        );
        assert_eq!(greeted(b"@RSYNCD: 33.2\n@RSYNCD: OK\n").0.unwrap(), 32);
        assert_eq!(greeted(b"@RSYNCD: 31.2\n@RSYNCD: OK\n").0.unwrap(), 30);
    }

    #[test]
    fn what_is_no_module_is_told() {
        for (says, code, why) in [
            (&b"@RSYNCD: 31.0\n@ERROR: Unknown module 'pub'\n"[..], ExitCode::StartClient, "Unknown module"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", ExitCode::StartClient, "no rsync daemon"),
            (b"@RSYNCD: 20.0\n", ExitCode::Protocol, "older than"),
            (b"@RSYNCD: 31.0\n@RSYNCD: EXIT\n", ExitCode::StartClient, "without opening"),
            (b"@RSYNCD: 31.0 none\n@RSYNCD: AUTHREQD x\n", ExitCode::StartClient, "none of the digests"),
            (b"@RSYNCD: 31.0\nmotd", ExitCode::Stream, "connection"),
        ] {
            let error = greeted(says).0.unwrap_err();
            assert!(error.code() == code && error.to_string().contains(why), "{error}");
        }
        let endless = [&b"@RSYNCD: 31.0\n"[..], &b"x".repeat(10_000)].concat();
        assert!(greeted(&endless).0.is_err());
        let endless = [&b"@RSYNCD: 31.0\n"[..], &b"x\n".repeat(10_000)].concat();
        assert!(greeted(&endless).0.is_err());
    }
}
