//! Files of several names: the content goes to one of them, and the others become links to it.

use std::collections::HashMap;

use crate::flist::Received;
use crate::target::Node;

/// Memory that a group takes, about.
pub(super) const GROUP_BYTES: u64 = 200;

/// What became of the name that gets the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    /// Not yet known.
    Awaited,
    /// This node is it.
    Done(Node),
    /// With `--dry-run`, there would be one.
    Supposed,
    /// There is none.
    Failed,
}

/// All names of one file.
#[derive(Debug)]
pub(super) struct Group {
    /// Indices, until that is done.
    pub(super) members: Vec<u32>,
    /// The one that gets the content, once one of them has been come to, and its name, once it has it.
    pub(super) leader: Option<u32>,
    pub(super) name: Vec<u8>,
    pub(super) state: Leader,
    /// Those that were come to before that was known.
    pub(super) waiting: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) groups: HashMap<u32, Group>,
}

impl Links {
    /// A file of the list that may be one of several names of a group; says whether it is the first of them.
    pub(super) fn add(&mut self, index: u32, group: u32) -> bool {
        let is_first = !self.groups.contains_key(&group);
        let new = || Group {
            members: Vec::new(),
            leader: None,
            name: Vec::new(),
            state: Leader::Awaited,
            waiting: Vec::new(),
        };
        let group = self.groups.entry(group).or_insert_with(new);
        if group.state == Leader::Awaited {
            group.members.push(index);
        }
        is_first
    }

    pub(super) fn of(&mut self, one: &Received) -> Option<&mut Group> {
        self.groups.get_mut(&one.group?)
    }
}
