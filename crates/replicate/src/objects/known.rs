//! What is known about a snapshot at the other side, and the queries that were sent.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::query::{Query, Unread, Whole, decode_step};

/// Bytes of objects kept.
const OBJECTS_MAX: usize = 32 << 20;
/// Bytes of other answers kept.
const ANSWERS_MAX: usize = 16 << 20;

/// An answer.
pub(super) type Answered = Result<Vec<u8>, Unread>;

/// Objects and answers that have arrived. If there are too many, the oldest are dropped, and requested again when
/// needed.
#[derive(Default)]
pub(super) struct Known {
    objects: HashMap<u64, Arc<Whole>>,
    objects_order: VecDeque<u64>,
    objects_size: usize,
    /// Answers that were asked for ahead of time.
    answers: HashMap<Query, Answered>,
    answers_order: VecDeque<Query>,
    answers_size: usize,
    pub(super) walk: Walked,
}

/// A walk at the other side.
#[derive(Default)]
pub(super) struct Walked {
    /// From where it goes down.
    pub(super) root: Option<u64>,
    /// Tells walks from the same place apart.
    pub(super) round: u64,
    /// Steps asked for that have not come.
    pub(super) asked: usize,
    /// Objects that have come and were not looked at.
    pub(super) ahead: VecDeque<u64>,
}

impl Known {
    /// An object, if it has come.
    pub(super) fn object(&mut self, object: u64) -> Option<Arc<Whole>> {
        let found = self.objects.get(&object)?;
        if let Some(at) = self.walk.ahead.iter().position(|ahead| *ahead == object) {
            self.walk.ahead.drain(..=at);
        }
        Some(found.clone())
    }

    /// Whether an object has come, with its data if that is wanted.
    pub(super) fn has(&self, object: u64, with_data: bool) -> bool {
        self.objects
            .get(&object)
            .is_some_and(|whole| !with_data || whole.data.is_some() || whole.dnode.is_none())
    }

    /// Whether all data of an object has come.
    pub(super) fn has_data(&self, object: u64) -> bool {
        self.objects.get(&object).is_some_and(|whole| whole.data.is_some())
    }

    /// Keeps an object.
    pub(super) fn put(&mut self, object: u64, whole: Whole) -> Arc<Whole> {
        let whole = Arc::new(whole);
        self.objects_size += whole.size();
        match self.objects.insert(object, whole.clone()) {
            Some(before) => self.objects_size -= before.size(),
            None => self.objects_order.push_back(object),
        }
        while self.objects_size > OBJECTS_MAX && self.objects_order.len() > 1 {
            let oldest = self.objects_order.pop_front().and_then(|oldest| self.objects.remove(&oldest));
            self.objects_size -= oldest.map_or(0, |oldest| oldest.size());
        }
        whole
    }

    /// Keeps an answer to a query that was sent ahead of time. If it is an error, the query is sent again when it is
    /// needed.
    pub(super) fn keep(&mut self, query: Query, answer: Answered) -> io::Result<()> {
        match (query, answer) {
            (Query::Object { object, .. }, Ok(bytes)) => {
                self.put(object, Whole::decode(object, &bytes)?);
            }
            (Query::Walk { round, .. }, answer) if round == self.walk.round => {
                self.walk.asked = self.walk.asked.saturating_sub(1);
                match answer.map_or(Ok(None), |bytes| decode_step(&bytes))? {
                    Some((object, whole)) => {
                        if !self.has(object, false) {
                            self.put(object, whole);
                        }
                        self.walk.ahead.push_back(object);
                    }
                    None => self.walk.root = None,
                }
            }
            (Query::Object { .. } | Query::Walk { .. }, _) => {}
            (query, answer) => {
                self.answers_size += size(&answer);
                match self.answers.insert(query, answer) {
                    Some(before) => self.answers_size -= size(&before),
                    None => self.answers_order.push_back(query),
                }
                while self.answers_size > ANSWERS_MAX && self.answers_order.len() > 1 {
                    let oldest =
                        self.answers_order.pop_front().and_then(|oldest| self.answers.remove(&oldest));
                    self.answers_size -= oldest.as_ref().map_or(0, size);
                }
            }
        }
        Ok(())
    }

    /// An answer that has come ahead of time.
    pub(super) fn take(&mut self, query: &Query) -> Option<Answered> {
        let answer = self.answers.remove(query)?;
        self.answers_size -= size(&answer);
        if let Some(at) = self.answers_order.iter().position(|known| known == query) {
            self.answers_order.remove(at);
        }
        Some(answer)
    }

    /// Whether an answer has come ahead of time.
    pub(super) fn has_answer(&self, query: &Query) -> bool {
        self.answers.contains_key(query)
    }
}

fn size(answer: &Answered) -> usize {
    128 + answer.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use snowmelt_zpl::Dnode;

    use super::super::query::encode_step;
    use super::*;

    fn whole(len: usize) -> Whole {
        Whole { dnode: Some(Dnode::default()), spill: None, data: Some(vec![(0, vec![1; len])]) }
    }

    #[test]
    fn memory_is_bounded_and_the_newest_is_kept() {
        let mut known = Known::default();
        for object in 0..200 {
            known.put(object, whole(1 << 20));
            assert!(known.objects_size <= OBJECTS_MAX);
            assert!(known.has(object, true));
            let query = Query::Data { object, offset: 0, len: 1 << 20 };
            known.keep(query, Ok(vec![0; 1 << 20])).unwrap();
            assert!(known.answers_size <= ANSWERS_MAX);
            assert!(known.has_answer(&query));
        }
        assert!(!known.has(0, false));
        assert_eq!(known.objects.len(), known.objects_order.len());
        assert_eq!(known.answers.len(), known.answers_order.len());
        known.put(199, whole(1));
        assert_eq!(known.objects.len(), known.objects_order.len());
        let query = Query::Data { object: 199, offset: 0, len: 1 << 20 };
        assert!(known.take(&query).is_some() && known.take(&query).is_none());
        assert_eq!(known.answers.len(), known.answers_order.len());
    }

    #[test]
    fn steps_of_another_walk_do_not_count() {
        let mut known = Known::default();
        (known.walk.root, known.walk.round, known.walk.asked) = (Some(34), 2, 3);
        let mut step = Vec::new();
        encode_step(7, &whole(9), &mut step);
        known.keep(Query::Walk { root: 34, round: 1 }, Ok(Vec::new())).unwrap();
        assert_eq!((known.walk.asked, known.walk.root), (3, Some(34)));
        known.keep(Query::Walk { root: 34, round: 2 }, Ok(step)).unwrap();
        assert_eq!((known.walk.asked, known.walk.ahead.len()), (2, 1));
        assert!(known.object(7).is_some() && known.walk.ahead.is_empty());
        known.keep(Query::Walk { root: 34, round: 2 }, Ok(Vec::new())).unwrap();
        assert_eq!((known.walk.asked, known.walk.root), (1, None));
        assert!(known.keep(Query::Walk { root: 34, round: 2 }, Ok(vec![1; 3])).is_err());
    }
}
