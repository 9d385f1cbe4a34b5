//! Passwords: the client answers a challenge with a digest of its password and the challenge.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use md4::Md4;
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::{Sha256, Sha512};

use super::config::{Access, AuthUser, Module};
use super::trusted;
use crate::filter::matches;
use crate::names::Names;

/// Random bytes in a challenge.
const CHALLENGE_LEN: usize = 48;
/// Length of the longest secrets file, in bytes.
const SECRETS_MAX: u64 = 1 << 20;

/// The digest of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AuthDigest {
    Sha512,
    Sha256,
    Sha1,
    Md5,
    Md4,
}

impl AuthDigest {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Sha512, "sha512"),
        (Self::Sha256, "sha256"),
        (Self::Sha1, "sha1"),
        (Self::Md5, "md5"),
        (Self::Md4, "md4"),
    ];

    /// All names, strongest first, as the greeting lists them.
    pub fn names() -> String {
        Self::ALL.map(|(_, name)| name).join(" ")
    }

    /// The digest with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(digest, _)| *digest)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(digest, _)| *digest == self).map_or("", |(_, name)| name)
    }

    /// Whether this digest is at least as strong as another.
    pub fn is_at_least(self, other: Self) -> bool {
        let place = |it: Self| Self::ALL.iter().position(|(digest, _)| *digest == it);
        place(self) <= place(other)
    }

    /// The first digest of the client's list that is known here. A client that names none uses the default digest of
    /// its version.
    pub fn choose<'n>(names: impl Iterator<Item = &'n str>, protocol: u32) -> Option<Self> {
        let mut names = names.peekable();
        if names.peek().is_none() {
            return Some(if protocol < 30 { Self::Md4 } else { Self::Md5 });
        }
        names.find_map(Self::named)
    }

    /// The strongest digest here that a server has too. A server that names none uses the default digest of its
    /// version.
    pub(crate) fn of_server(names: &[&str], protocol: u8) -> Option<Self> {
        if names.is_empty() {
            return Self::choose(std::iter::empty(), u32::from(protocol));
        }
        Self::ALL.iter().find(|(_, name)| names.contains(name)).map(|(digest, _)| *digest)
    }

    /// The answer to a challenge. It proves that the client knows the password.
    pub(crate) fn answer(self, password: &[u8], challenge: &str) -> String {
        fn digest<D: Digest>(password: &[u8], challenge: &str) -> Vec<u8> {
            D::new().chain_update(password).chain_update(challenge).finalize().to_vec()
        }
        base64(&match self {
            Self::Sha512 => digest::<Sha512>(password, challenge),
            Self::Sha256 => digest::<Sha256>(password, challenge),
            Self::Sha1 => digest::<Sha1>(password, challenge),
            Self::Md5 => digest::<Md5>(password, challenge),
            // The older form begins with the seed, which is zero here.
            Self::Md4 => digest::<Md4>(&[&[0; 4], password].concat(), challenge),
        })
    }
}

/// Base64 without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let group =
            three.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..=three.len() {
            text.push(char::from(DIGITS[(group >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// A new random challenge.
///
/// # Errors
/// When the machine has no random numbers.
pub fn challenge() -> io::Result<String> {
    let mut bytes = [0; CHALLENGE_LEN];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(base64(&bytes))
}

/// Checks an answer of the form "name digest". Returns the name of the user, and the access of the user if a rule sets
/// it instead of the module.
///
/// # Errors
/// A reason for the log. The client is not told.
pub fn check(
    module: &Module,
    digest: AuthDigest,
    challenge: &str,
    answer: &str,
    names: &Names,
) -> Result<(String, Option<Access>), String> {
    let (name, answer) = answer.split_once(' ').ok_or("an answer without a digest")?;
    let mut rules = module.auth_users.iter();
    let found = rules.find_map(|rule| Some((rule, allows(rule, name, names)?)));
    let (user, group) = found.ok_or("no matching rule")?;
    if user.access == Some(Access::Denied) {
        return Err("denied by rule".to_owned());
    }
    let file = module.secrets_file.as_deref().ok_or("no secrets file")?;
    let text = secrets(file, module.strict_modes)?;
    let mut is_known = false;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let is_own = |whose: &str| match whose.strip_prefix('@') {
            Some(whose) => group.as_deref() == Some(whose.as_bytes()),
            None => whose == name,
        };
        if let Some((_, password)) = line.split_once(':').filter(|(whose, _)| is_own(whose)) {
            is_known = true;
            if is_equal(digest.answer(password.as_bytes(), challenge).as_bytes(), answer.as_bytes()) {
                return Ok((name.to_owned(), user.access));
            }
        }
    }
    Err(if is_known { "password mismatch" } else { "no secret" }.to_owned())
}

/// Whether a rule applies to a user of this name. It applies by name, or by a group that this machine's user of that
/// name is in. In the second case the group is returned, and its secret is valid too.
fn allows(rule: &AuthUser, name: &str, names: &Names) -> Option<Option<Vec<u8>>> {
    match rule.name.strip_prefix('@') {
        Some(pattern) => {
            let group = names.groups_of(name).find(|group| matches(pattern.as_bytes(), group.as_ref()))?;
            Some(Some(group.to_vec()))
        }
        None => matches(rule.name.as_bytes(), name.as_bytes()).then_some(None),
    }
}

/// Compares in a time that does not depend on where the values differ.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

fn secrets(file: &Path, strict: bool) -> Result<String, String> {
    let opened = trusted::open(file).and_then(|opened| Ok((opened.metadata()?, opened)));
    let (metadata, opened) = opened.map_err(|error| format!("secrets file: {error}"))?;
    if strict && metadata.mode() & 0o006 != 0 {
        return Err("secrets file must not be other-accessible (see strict modes option)".to_owned());
    }
    if strict && rustix::process::geteuid().is_root() && metadata.uid() != 0 {
        return Err("secrets file must be owned by root when running as root (see strict modes)".to_owned());
    }
    if metadata.len() > SECRETS_MAX {
        return Err("secrets file is too long".to_owned());
    }
    let mut text = String::new();
    opened.take(SECRETS_MAX).read_to_string(&mut text).map_err(|error| format!("secrets file: {error}"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_rsync() {
        // The answer of stock rsync 3.5 for the password "pw".
        let challenge =
            "eD+3fAwGbph+Ct+sGml1/+MdWjTiyfIAlyZ/F00c45O8Pxc2qI3uTAt2WYlFkKREqLVU+hr0WDRGfVPxzBgrxA";
        assert_eq!(
            AuthDigest::Sha512.answer(b"pw", challenge),
            "EVLKIFWgm9+wxCUnfEt8upfuR1jp/a+5MUfOcIJNXbLXsVEIdyf+i6GAYf6j2CG2Rf+tGWIEA+f1sd8HDMbaPQ"
        );
        assert_eq!(AuthDigest::choose("x sha1 md5".split(' '), 31), Some(AuthDigest::Sha1));
        assert_eq!(AuthDigest::choose(std::iter::empty(), 30), Some(AuthDigest::Md5));
        assert_eq!(AuthDigest::choose(std::iter::empty(), 29), Some(AuthDigest::Md4));
    }

    #[test]
    fn rules_may_be_about_groups() {
        let names = Names::parse(
            b"ann:x:7:9::/:\nbob:x:8:8::/:\neve:x:6:6::/:\n",
            b"g:x:9:\nstaff:x:20:bob,zoe\nsad:x:21:bob,eve\n",
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "@g:of g\nbob:bobs\n@staff:of staff\n@sad:of sad\nzoe:z\n").unwrap();
        let text = format!(
            "[m]\npath = tank/m\nsecrets file = {}\nauth users = @g:ro, @st*:rw, @sad:deny, zoe\n",
            file.path().display()
        );
        let config = super::super::Config::parse(&text, Path::new("rsyncd.conf")).unwrap();
        let check = |name: &str, password: &[u8]| {
            let answer = format!("{name} {}", AuthDigest::Sha256.answer(password, "c"));
            super::check(&config.modules[0], AuthDigest::Sha256, "c", &answer, &names)
                .map(|(_, access)| access)
        };
        assert_eq!(check("ann", b"of g"), Ok(Some(Access::Read)));
        assert_eq!(check("bob", b"of staff"), Ok(Some(Access::ReadWrite)));
        assert_eq!(check("bob", b"bobs"), Ok(Some(Access::ReadWrite)), "of several rules the first counts");
        assert_eq!(check("zoe", b"z"), Ok(None), "who is no user here is in no group");
        for (name, password) in [
            ("eve", &b"of sad"[..]),
            ("bob", b"of g"),
            ("ann", b"of staff"),
            ("@g", b"of g"),
            ("zoe", b"of staff"),
        ] {
            assert!(check(name, password).is_err(), "{name}");
        }
    }

    #[test]
    fn base64_needs_no_filling() {
        assert_eq!((base64(b"f"), base64(b"fo"), base64(b"foo")), ("Zg".into(), "Zm8".into(), "Zm9v".into()));
    }
}
