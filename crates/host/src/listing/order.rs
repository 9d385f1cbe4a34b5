//! The order of rows: by what `-s` and `-S` say, then datasets by name, each before its snapshots and those before its
//! bookmarks, oldest first (`zfs_sort` and `zfs_compare` in `cmd/zfs/zfs_iter.c`).

use std::cmp::Ordering;

use super::request::{Row, SortKey, SortValue};

/// Sorts rows and drops those that are there twice.
pub fn sort(rows: &mut Vec<Row>, keys: &[SortKey]) {
    rows.sort_by(|a, b| by_keys(a, b, keys).then_with(|| by_place(a, b)));
    rows.dedup_by(|a, b| a.name == b.name);
}

/// Rows without a value come last, also in descending order.
fn by_keys(a: &Row, b: &Row, keys: &[SortKey]) -> Ordering {
    for (at, key) in keys.iter().enumerate() {
        let order = match (a.sort.get(at), b.sort.get(at)) {
            (Some(SortValue::Number(a)), Some(SortValue::Number(b))) => directed(a.cmp(b), key),
            (Some(SortValue::Text(a)), Some(SortValue::Text(b))) => directed(a.cmp(b), key),
            (Some(SortValue::None), Some(SortValue::None)) => Ordering::Equal,
            (Some(SortValue::None), _) => Ordering::Greater,
            (_, Some(SortValue::None)) => Ordering::Less,
            _ => Ordering::Equal,
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

fn directed(order: Ordering, key: &SortKey) -> Ordering {
    if key.descending { order.reverse() } else { order }
}

fn by_place(a: &Row, b: &Row) -> Ordering {
    let place = |row: &Row| (row.rank, if row.rank == 0 { 0 } else { row.createtxg });
    a.dataset.cmp(&b.dataset).then_with(|| place(a).cmp(&place(b))).then_with(|| a.name.cmp(&b.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, createtxg: u64, sort: SortValue) -> Row {
        let end = name.find(['@', '#']).unwrap_or(name.len());
        let rank = match name.as_bytes().get(end) {
            None => 0,
            Some(b'@') => 1,
            Some(_) => 2,
        };
        Row {
            name: name.to_owned(),
            dataset: name[..end].to_owned(),
            kind: String::new(),
            rank,
            createtxg,
            sort: vec![sort],
            cells: Vec::new(),
        }
    }

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn datasets_by_name_and_snapshots_by_age() {
        let mut rows = vec![
            row("t/b", 9, SortValue::None),
            row("t@z", 5, SortValue::None),
            row("t#m", 4, SortValue::None),
            row("t@a", 7, SortValue::None),
            row("t", 1, SortValue::None),
            row("t@z", 5, SortValue::None),
        ];
        sort(&mut rows, &[]);
        assert_eq!(names(&rows), ["t", "t@z", "t@a", "t#m", "t/b"]);
    }

    #[test]
    fn missing_values_come_last_either_way() {
        for descending in [false, true] {
            let key = SortKey { property: "used".into(), descending };
            let mut rows = vec![
                row("t/none", 1, SortValue::None),
                row("t/big", 2, SortValue::Number(10)),
                row("t/small", 3, SortValue::Number(9)),
            ];
            sort(&mut rows, &[key]);
            let expected =
                if descending { ["t/big", "t/small", "t/none"] } else { ["t/small", "t/big", "t/none"] };
            assert_eq!(names(&rows), expected);
        }
    }
}
