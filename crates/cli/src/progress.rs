//! Progress for people: a line on standard error that moves, only where that is a terminal.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::context::Context;

/// Bytes of a known total, with the rate and what is left.
const BYTES_OF_TOTAL: &str = "{msg}{bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";

/// A progress line, or nothing where nobody would see it.
pub struct Progress(Option<ProgressBar>);

/// A terminal that indicatif draws on: the command's standard error, which may be another process's.
#[derive(Debug)]
struct Terminal {
    file: std::fs::File,
    width: u16,
}

impl Progress {
    /// Counts bytes up to `total`, if that is known.
    pub fn bytes(context: &Context, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => BYTES_OF_TOTAL,
            None => "{msg}{bytes}  {bytes_per_sec}  {elapsed}",
        };
        Self::new(context, template, total)
    }

    /// Counts things, named by the message.
    pub fn items(context: &Context) -> Self {
        Self::new(context, "{msg}{human_pos}  {elapsed}", None)
    }

    /// Nothing.
    pub fn hidden() -> Self {
        Self(None)
    }

    fn new(context: &Context, template: &str, total: Option<u64>) -> Self {
        let Some(file) = context.is_terminal_err().then(|| context.err.try_clone().ok()).flatten() else {
            return Self(None);
        };
        let width = rustix::termios::tcgetwinsize(&file).map_or(80, |size| size.ws_col.max(20));
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(Terminal { file, width }), 5);
        let bar = ProgressBar::with_draw_target(total, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(Some(bar))
    }

    /// What stands before the numbers.
    pub fn message(&self, message: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.0 {
            bar.set_message(message);
        }
    }

    /// How far it is now.
    pub fn set(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }

    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    /// So many bytes are to come, if that is known.
    pub fn expect(&self, total: Option<u64>) {
        if let (Some(bar), Some(total)) = (&self.0, total) {
            bar.set_length(total);
            if let Ok(style) = ProgressStyle::with_template(BYTES_OF_TOTAL) {
                bar.set_style(style);
            }
        }
    }

    /// So much further.
    pub fn advance(&self, by: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(by);
        }
    }

    /// Takes the line away.
    pub fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
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
