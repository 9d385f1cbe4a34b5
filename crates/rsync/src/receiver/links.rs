//! Files of several names: the content goes to one of them, and the others become links to it.

use std::collections::HashMap;

use crate::flist::Received;

/// What became of the name that gets the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    /// Not yet known.
    Awaited,
    /// This object is it.
    Done(u64),
    /// There is none.
    Failed,
}

/// All names of one file.
#[derive(Debug)]
pub(super) struct Group {
    /// Indices.
    pub(super) members: Vec<u32>,
    /// The one that gets the content.
    pub(super) leader: u32,
    pub(super) state: Leader,
    /// Those that were come to before that was known.
    pub(super) waiting: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) groups: HashMap<u32, Group>,
}

impl Links {
    pub(super) fn new(list: &[Received], counts: &[bool]) -> Self {
        let mut groups: HashMap<u32, Group> = HashMap::new();
        for ((index, one), counts) in (0..).zip(list).zip(counts) {
            if let Some(number) = one.group.filter(|_| *counts) {
                let new = || Group {
                    members: Vec::new(),
                    leader: index,
                    state: Leader::Awaited,
                    waiting: Vec::new(),
                };
                groups.entry(number).or_insert_with(new).members.push(index);
            }
        }
        groups.retain(|_, group| group.members.len() > 1);
        Self { groups }
    }

    pub(super) fn of(&mut self, one: &Received) -> Option<&mut Group> {
        self.groups.get_mut(&one.group?)
    }
}
