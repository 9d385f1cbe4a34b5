//! Tables, as `zfs list` and `zfs get` print them.

use std::io::{self, Write};

use snowmelt_dataset::text::visible_name;

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its header.
    pub header: String,
    /// Its least width.
    pub width: usize,
    /// Whether it is aligned to the right.
    pub right: bool,
}

impl Column {
    /// Aligned to the left, as wide as it needs to be.
    pub fn left(header: impl Into<String>) -> Self {
        Self { header: header.into(), width: 0, right: false }
    }

    /// Aligned to the right, as wide as it needs to be.
    pub fn right(header: impl Into<String>) -> Self {
        Self { header: header.into(), width: 0, right: true }
    }

    /// At least so wide.
    pub fn at_least(mut self, width: usize) -> Self {
        self.width = width;
        self
    }
}

/// Prints rows. Without `scripted`, control characters are removed from cells, because values and tags can come from
/// strangers, and columns are separated by two spaces, with none after the last one. `scripted` (`-H`) prints no
/// header, and one tab between columns.
///
/// # Errors
/// When the output cannot be written.
pub fn print(
    out: &mut impl Write,
    columns: &[Column],
    rows: &[Vec<String>],
    scripted: bool,
) -> io::Result<()> {
    if scripted {
        for row in rows {
            writeln!(out, "{}", row.join("\t"))?;
        }
        return Ok(());
    }
    let shown: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| visible_name(cell.as_bytes())).collect()).collect();
    let rows = shown.as_slice();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain([column.width, column.header.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let header: Vec<String> = columns.iter().map(|column| column.header.clone()).collect();
    for row in std::iter::once(&header).chain(rows) {
        for (at, (cell, column)) in row.iter().zip(columns).enumerate() {
            let width = widths.get(at).copied().unwrap_or(0);
            let gap = if at == 0 { "" } else { "  " };
            match (column.right, at + 1 == columns.len()) {
                (true, _) => write!(out, "{gap}{cell:>width$}")?,
                (false, true) => write!(out, "{gap}{cell}")?,
                (false, false) => write!(out, "{gap}{cell:<width$}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(scripted: bool) -> String {
        let columns = [Column::left("NAME"), Column::right("USED").at_least(5), Column::left("MOUNTPOINT")];
        let rows = [["tank", "96K", "/tank"], ["tank/longer name", "1.50M", "none"]]
            .map(|row| row.map(str::to_owned).to_vec());
        let mut out = Vec::new();
        print(&mut out, &columns, &rows, scripted).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_for_people() {
        assert_eq!(
            printed(false),
            "NAME               USED  MOUNTPOINT\n\
             tank                96K  /tank\n\
             tank/longer name  1.50M  none\n"
        );
    }

    #[test]
    fn tabs_for_programs() {
        assert_eq!(printed(true), "tank\t96K\t/tank\ntank/longer name\t1.50M\tnone\n");
    }
}
