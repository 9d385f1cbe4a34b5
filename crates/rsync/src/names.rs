//! Names of users and groups, from `/etc/passwd` and `/etc/group`, or from a name converter.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::name_converter::{Kind, NameConverter};

/// Names by number, and numbers by name.
#[derive(Debug, Default, Clone)]
pub struct Names {
    users: Table,
    groups: Table,
    /// The primary group of each user.
    primary: HashMap<Vec<u8>, u32>,
    /// The further groups of each user.
    members: HashMap<Vec<u8>, Vec<u32>>,
    /// The name converter, if one is used instead of the tables.
    converter: Option<Arc<NameConverter>>,
}

#[derive(Debug, Default, Clone)]
struct Table {
    names: HashMap<u32, Vec<u8>>,
    numbers: HashMap<Vec<u8>, u32>,
}

/// The longest name in the protocol, in bytes.
const NAME_MAX: usize = 255;

impl Table {
    fn add(&mut self, name: &[u8], number: u32) {
        if !name.is_empty() && name.len() <= NAME_MAX {
            self.names.entry(number).or_insert_with(|| name.to_vec());
            self.numbers.entry(name.to_vec()).or_insert(number);
        }
    }
}

fn number(field: Option<&&[u8]>) -> Option<u32> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

impl Names {
    /// Reads the files of this machine. A file that cannot be read has no names.
    pub fn of_this_machine() -> Self {
        let read = |path: &str| std::fs::read(Path::new(path)).unwrap_or_default();
        Self::parse(&read("/etc/passwd"), &read("/etc/group"))
    }

    /// Parses the content of the files.
    pub fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut names = Self::default();
        for (text, is_user) in [(passwd, true), (group, false)] {
            for line in text.split(|byte| *byte == b'\n') {
                let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
                let (Some(name), Some(id)) = (fields.first(), number(fields.get(2))) else { continue };
                let table = if is_user { &mut names.users } else { &mut names.groups };
                table.add(name, id);
                if !is_user {
                    let users = fields.get(3).into_iter().flat_map(|users| users.split(|byte| *byte == b','));
                    for user in users.filter(|user| !user.is_empty()) {
                        names.members.entry(user.to_vec()).or_default().push(id);
                    }
                }
                if let Some(primary) = number(fields.get(3)).filter(|_| is_user) {
                    names.primary.entry(name.to_vec()).or_insert(primary);
                }
            }
        }
        names
    }

    /// The names that a name converter knows.
    pub(crate) fn converted(converter: NameConverter) -> Self {
        Self { converter: Some(Arc::new(converter)), ..Self::default() }
    }

    /// Whether a client's name cannot be looked up, because requests to a name converter are lines.
    pub(crate) fn refuses(&self, name: &[u8]) -> bool {
        self.converter.is_some() && name.iter().any(u8::is_ascii_control)
    }

    fn table(&self, kind: Kind) -> &Table {
        if kind == Kind::User { &self.users } else { &self.groups }
    }

    fn name_of(&self, kind: Kind, id: u32) -> Option<Cow<'_, [u8]>> {
        match &self.converter {
            Some(converter) => {
                converter.name_of(kind, id).filter(|name| name.len() <= NAME_MAX).map(Cow::Owned)
            }
            None => self.table(kind).names.get(&id).map(|name| name.as_slice().into()),
        }
    }

    fn number_of(&self, kind: Kind, name: &[u8]) -> Option<u32> {
        match &self.converter {
            Some(converter) => converter.number_of(kind, name),
            None => self.table(kind).numbers.get(name).copied(),
        }
    }

    /// The name of a user.
    pub fn user(&self, uid: u32) -> Option<Cow<'_, [u8]>> {
        self.name_of(Kind::User, uid)
    }

    /// The name of a group.
    pub fn group(&self, gid: u32) -> Option<Cow<'_, [u8]>> {
        self.name_of(Kind::Group, gid)
    }

    /// The number of a user, from a name or number.
    pub fn uid(&self, name: &str) -> Option<u32> {
        name.parse().ok().or_else(|| self.number_of(Kind::User, name.as_bytes()))
    }

    /// The number of a group, from a name or number.
    pub fn gid(&self, name: &str) -> Option<u32> {
        name.parse().ok().or_else(|| self.number_of(Kind::Group, name.as_bytes()))
    }

    /// The number of a user, from a name only.
    pub fn uid_of(&self, name: &[u8]) -> Option<u32> {
        self.number_of(Kind::User, name)
    }

    /// The number of a group, from a name only.
    pub fn gid_of(&self, name: &[u8]) -> Option<u32> {
        self.number_of(Kind::Group, name)
    }

    /// The groups of a user of this machine, the primary one first.
    pub fn gids_of(&self, user: &str) -> impl Iterator<Item = u32> {
        let is_known = self.users.numbers.contains_key(user.as_bytes());
        let others = self.members.get(user.as_bytes()).into_iter().flatten().copied();
        self.primary_gid(user).into_iter().chain(others).filter(move |_| is_known)
    }

    /// The names of the groups of a user of this machine.
    pub fn groups_of(&self, user: &str) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.gids_of(user).filter_map(|gid| self.group(gid))
    }

    /// The primary group of a user.
    pub fn primary_gid(&self, user: &str) -> Option<u32> {
        self.primary.get(user.as_bytes()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_both_ways() {
        let names = Names::parse(
            b"root:x:0:0::/:\njoe:x:7:9::/:\nbad\n+::::\n",
            b"wheel:x:0:\ng:x:9:joe\nh:x:10:ann,joe\n",
        );
        assert_eq!(names.user(7).as_deref(), Some(&b"joe"[..]));
        assert_eq!(names.group(0).as_deref(), Some(&b"wheel"[..]));
        assert_eq!((names.uid("joe"), names.uid("12"), names.uid("x")), (Some(7), Some(12), None));
        assert_eq!((names.gid("g"), names.primary_gid("joe")), (Some(9), Some(9)));
        let groups = |user| names.groups_of(user).map(|name| String::from_utf8_lossy(&name).into_owned());
        assert_eq!(groups("joe").collect::<Vec<_>>().join(" "), "g g h");
        assert_eq!((groups("root").count(), groups("ann").count()), (1, 0), "ann is no user");
    }
}
