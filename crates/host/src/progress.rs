//! Progress for people: a line on standard error that moves, only where that is a terminal.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use snowmelt_dataset::property::format_bytes;

use snowmelt_dataset::text::visible_name;

use crate::context::Context;

/// Bytes of a known total: a bar, the rate and the time that is left.
const BYTES_OF_TOTAL: &str = "{msg}{bar:16} {percent:>3}%  {done} of {total}  {rate}  {eta} left";
/// Bytes of an unknown total.
const BYTES: &str = "{msg}{done}  {rate}  {elapsed}";
/// Names of files and directories, and the bytes read.
const ENTRIES: &str = "{msg}{human_pos} entries  {prefix}{elapsed}";

/// Columns that everything but the message may take.
const NUMBERS_WIDTH: usize = 64;

/// A progress line, or nothing if nobody would see it. It uses one line of the terminal, regardless of the length of
/// the message.
pub struct Progress(Option<Line>);

struct Line {
    bar: ProgressBar,
    /// Columns for the message.
    room: usize,
}

/// A terminal that indicatif draws on: the command's standard error, which may be another process's.
#[derive(Debug)]
struct Terminal {
    file: std::fs::File,
    width: u16,
}

impl Progress {
    /// Counts bytes up to `total`, if that is known.
    pub fn bytes(context: &Context, total: Option<u64>) -> Self {
        let template = if total.is_some() { BYTES_OF_TOTAL } else { BYTES };
        Self::new(context, template, total)
    }

    /// Counts files and directories.
    pub fn entries(context: &Context) -> Self {
        Self::new(context, ENTRIES, None)
    }

    /// Nothing.
    pub fn hidden() -> Self {
        Self(None)
    }

    fn new(context: &Context, template: &str, total: Option<u64>) -> Self {
        let Some(file) = context.is_terminal_err().then(|| context.err.try_clone().ok()).flatten() else {
            return Self(None);
        };
        // A terminal without a known size has the size 0.
        let columns = rustix::termios::tcgetwinsize(&file).map_or(0, |size| size.ws_col);
        let width = if columns == 0 { 80 } else { columns.max(20) };
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(Terminal { file, width }), 5);
        let bar = ProgressBar::with_draw_target(total, target);
        if let Some(style) = style(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Some(Line { bar, room: usize::from(width).saturating_sub(NUMBERS_WIDTH) }))
    }

    /// The text before the numbers: what is being done. If the line is too short for it, its middle is left out.
    pub fn message(&self, message: &str) {
        if let Some(line) = &self.0 {
            line.bar.set_message(fit(&visible_name(message.as_bytes()), line.room));
        }
    }

    /// Bytes that were read, beside a count of entries.
    pub fn read(&self, bytes: u64) {
        if let Some(line) = &self.0 {
            line.bar.set_prefix(format!("{} read  ", format_bytes(bytes)));
        }
    }

    /// How far it is now.
    pub fn set(&self, position: u64) {
        if let Some(line) = &self.0 {
            line.bar.set_position(position);
        }
    }

    /// Whether it is visible.
    pub fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    /// So many bytes are to come, if that is known.
    pub fn expect(&self, total: Option<u64>) {
        if let (Some(line), Some(total)) = (&self.0, total) {
            line.bar.set_length(total);
            if let Some(style) = style(BYTES_OF_TOTAL) {
                line.bar.set_style(style);
            }
        }
    }

    /// So much further.
    pub fn advance(&self, by: u64) {
        if let Some(line) = &self.0 {
            line.bar.inc(by);
        }
    }

    /// Takes the line away.
    pub fn finish(self) {
        if let Some(line) = self.0 {
            line.bar.finish_and_clear();
        }
    }
}

/// A template with the sizes in the units of every other output (`1.21G`).
fn style(template: &str) -> Option<ProgressStyle> {
    let style = ProgressStyle::with_template(template).ok()?;
    Some(
        style
            .progress_chars("=> ")
            .with_key("done", |state: &ProgressState, out: &mut dyn Write| size(out, state.pos()))
            .with_key("total", |state: &ProgressState, out: &mut dyn Write| {
                size(out, state.len().unwrap_or_default())
            })
            .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a float saturates
                size(out, state.per_sec() as u64);
                let _ = out.write_str("/s");
            }),
    )
}

/// There is nowhere to report that a line cannot be drawn.
fn size(out: &mut dyn Write, bytes: u64) {
    let _ = out.write_str(&format_bytes(bytes));
}

/// The message and two blanks in at most `room` columns; the middle of a longer one is left out.
fn fit(message: &str, room: usize) -> String {
    let room = room.saturating_sub(2);
    let count = message.chars().count();
    match (count <= room, room) {
        (_, _) if message.is_empty() => String::new(),
        (true, _) => format!("{message}  "),
        (false, 0..8) => String::new(),
        (false, room) => {
            let behind = (room - 1) / 2;
            let before: String = message.chars().take(room - 1 - behind).collect();
            let after: String = message.chars().skip(count - behind).collect();
            format!("{before}…{after}  ")
        }
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        self.width
    }

    fn move_cursor_up(&self, lines: usize) -> std::io::Result<()> {
        self.escape(lines, 'A')
    }

    fn move_cursor_down(&self, lines: usize) -> std::io::Result<()> {
        self.escape(lines, 'B')
    }

    fn move_cursor_right(&self, columns: usize) -> std::io::Result<()> {
        self.escape(columns, 'C')
    }

    fn move_cursor_left(&self, columns: usize) -> std::io::Result<()> {
        self.escape(columns, 'D')
    }

    fn write_line(&self, text: &str) -> std::io::Result<()> {
        self.put(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> std::io::Result<()> {
        self.put(text)
    }

    fn clear_line(&self) -> std::io::Result<()> {
        self.put("\r\x1b[2K")
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Terminal {
    fn escape(&self, count: usize, letter: char) -> std::io::Result<()> {
        if count == 0 { Ok(()) } else { self.put(&format!("\x1b[{count}{letter}")) }
    }

    fn put(&self, text: &str) -> std::io::Result<()> {
        std::io::Write::write_all(&mut &self.file, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_no_more_columns_than_there_are() {
        assert_eq!(fit("tank/home", 16), "tank/home  ");
        assert_eq!(fit("tank/home@monday to back/home", 18), "tank/hom…ck/home  ");
        assert_eq!(fit("tank/home@monday", 9), "");
        assert_eq!(fit("", 40), "");
    }

    #[test]
    fn the_templates_are_sound() {
        for template in [BYTES_OF_TOTAL, BYTES, ENTRIES] {
            assert!(style(template).is_some(), "{template}");
        }
    }
}
