//! Groups of hard links: one name of a file receives the content, and the others become hard links to it.

use std::collections::HashMap;

use crate::flist::Received;
use crate::target::Node;

/// The approximate memory of a group, in bytes.
pub(super) const GROUP_BYTES: u64 = 200;

/// The result of the leader, the name that receives the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    /// It is not known yet.
    Awaited,
    /// The file is this node.
    Done(Node),
    /// There would be a file, in a dry run.
    Supposed,
    /// There is no file.
    Failed,
}

/// All names of one file.
#[derive(Debug)]
pub(super) struct Group {
    /// The indices of the names, until the leader is done.
    pub(super) members: Vec<u32>,
    /// The index of the leader, once it was chosen, and its name, once it is done.
    pub(super) leader: Option<u32>,
    pub(super) name: Vec<u8>,
    pub(super) state: Leader,
    /// The indices that wait for the leader.
    pub(super) waiting: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) groups: HashMap<u32, Group>,
}

impl Links {
    /// Adds a file of the list to a group. Returns whether it is the first of the group.
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
