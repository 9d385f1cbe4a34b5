//! Both sides of `read` without a connection, for the fuzz target.

use std::cell::OnceCell;

use snowmelt_dataset::Objset;

use super::answer::Has;
use super::query::{Query, READ_MAX, Whole, decode_numbers, decode_step, read_answer, write_answer};

/// Maximum number of queries in an input: each can request a MiB.
const QUERIES_MAX: usize = 64;

/// Takes any bytes for queries of a client about a snapshot and an older one, and answers them.
pub fn queries(objset: &Objset, since: Option<&Objset>, mut input: &[u8]) {
    let (mut found, mut sent) = (Vec::new(), Vec::new());
    let (filesystem, older) = (OnceCell::new(), OnceCell::new());
    let mut has = Has::new(objset, since, &filesystem);
    let mut older = Has::new(since.unwrap_or(objset), since, &older);
    for _ in 0..QUERIES_MAX {
        let before = input;
        let Ok(Some((query, is_of_older))) = Query::read_of(&mut input) else { return };
        let again = query.encode_of(is_of_older);
        assert_eq!(Query::read_of(&mut &again[..]).ok().flatten(), Some((query, is_of_older)));
        assert!(before.len() > input.len());
        let of = if is_of_older { &mut older } else { &mut has };
        let result = of.find(query, &mut found);
        sent.clear();
        let answer = result.as_ref().map(|()| found.as_slice());
        assert!(write_answer(&mut sent, answer).is_ok());
        assert!(sent.len() <= READ_MAX + 1024 + 5, "{query:?}");
        let received = read_answer(&mut &sent[..]).ok();
        assert_eq!(received, Some(answer.map(<[u8]>::to_vec).map_err(Clone::clone)), "{query:?}");
    }
}

/// Takes any bytes for answers of a server.
pub fn answers(mut input: &[u8]) {
    while let Ok(answer) = read_answer(&mut input) {
        let Ok(bytes) = answer else { continue };
        // Whatever they answer.
        let _ = (Whole::decode(1, &bytes), decode_step(&bytes), decode_numbers(&bytes));
    }
}
