//! The lines of a configuration, and the files that they include.

use std::path::{Path, PathBuf};

use super::set::{Assignment, Draft};
use super::{Config, ConfigError, Seen, Value};

/// Files that include files that include …
const DEPTH_MAX: usize = 10;

/// What has been read so far.
pub(super) struct Reader {
    config: Config,
    /// What stands before the first module, or below "[global]", is what modules begin as.
    defaults: Draft,
    current: Option<Draft>,
    /// Of the files that are being read.
    depth: usize,
    /// The line that was read last.
    line: usize,
    /// Global parameters that count more than those of the file, until they have been set.
    overrides: Vec<Assignment>,
}

impl Reader {
    /// `overrides` are lines of parameters that are set once those of the file before its first module are.
    ///
    /// # Errors
    /// When one of them is no parameter.
    pub(super) fn new(overrides: &str) -> Value<Self> {
        let overrides = overrides.lines().map(assignment).collect::<Value<_>>()?;
        let (config, defaults) = (Config::default(), Draft::new());
        Ok(Self { config, defaults, current: None, depth: 0, line: 0, overrides })
    }

    /// Reads the text of a file.
    pub(super) fn text(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        for (line, text) in logical_lines(text) {
            self.line = line;
            let wrong = |what: String| ConfigError::Line { path: path.to_owned(), line, what };
            if let Some(directive) = text.strip_prefix('&') {
                let (name, other) = directive.split_once([' ', '\t', '=']).unwrap_or((directive, ""));
                let other = other.trim_start().trim_start_matches('=').trim();
                match name.to_ascii_lowercase().as_str() {
                    "include" if !other.is_empty() => {
                        self.finish_module().map_err(wrong)?;
                        let defaults = self.defaults.clone();
                        for file in self.files(path, other, "conf").map_err(wrong)? {
                            self.nested(&file, path, line)?;
                            self.finish_module().map_err(wrong)?;
                            self.defaults = defaults.clone();
                        }
                    }
                    "merge" if !other.is_empty() => {
                        for file in self.files(path, other, "inc").map_err(wrong)? {
                            self.nested(&file, path, line)?;
                        }
                    }
                    _ => {
                        return Err(wrong(format!(
                            "'&{directive}' is neither '&include FILE' nor '&merge FILE'"
                        )));
                    }
                }
            } else if let Some(name) = text.strip_prefix('[') {
                self.begin_module(name).map_err(wrong)?;
            } else {
                let warning = self.parameter(&text).map_err(wrong)?;
                if let Some(warning) = warning {
                    self.config.warnings.push(format!("{warning} ({}, line {line})", path.display()));
                }
            }
        }
        Ok(())
    }

    /// All has been read, beginning with the file `path`.
    pub(super) fn end(mut self, path: &Path) -> Result<Config, ConfigError> {
        let line = self.line;
        let wrong = |what| ConfigError::Line { path: path.to_owned(), line, what };
        self.override_globals().map_err(wrong)?;
        self.finish_module().map_err(wrong)?;
        self.config.check().map_err(wrong)?;
        Ok(self.config)
    }

    /// Reads a file.
    pub(super) fn file(&mut self, file: &Path) -> Result<(), ConfigError> {
        // Before it is read: what changes meanwhile is another file.
        self.saw(file);
        let text = String::from_utf8(super::contents(file)?);
        let text = text.map_err(|_| ConfigError::Line {
            path: file.to_owned(),
            line: 1,
            what: "the file is no text in UTF-8".to_owned(),
        })?;
        self.text(&text, file)
    }

    /// Reads a file that a line of another one names.
    fn nested(&mut self, file: &Path, by: &Path, line: usize) -> Result<(), ConfigError> {
        if self.depth == DEPTH_MAX {
            let what = format!("{}: more than {DEPTH_MAX} files include one another", file.display());
            return Err(ConfigError::Line { path: by.to_owned(), line, what });
        }
        self.depth += 1;
        self.file(file)?;
        self.depth -= 1;
        self.line = line;
        Ok(())
    }

    /// Remembers what a file was when it was read.
    fn saw(&mut self, path: &Path) {
        self.config.files.push(Seen::at(path));
    }

    fn begin_module(&mut self, name: &str) -> Value<()> {
        let name = name.strip_suffix(']').and_then(super::module_name);
        let name = name.ok_or_else(|| "this is no module's name".to_owned())?;
        self.finish_module()?;
        if name == "global" {
            return Ok(());
        }
        self.override_globals()?;
        if self.config.modules.iter().any(|other| other.name == name) {
            return Err(format!("module '{name}' is there twice"));
        }
        self.current = Some(self.defaults.named(&name));
        Ok(())
    }

    fn finish_module(&mut self) -> Value<()> {
        if let Some(done) = self.current.take() {
            self.config.modules.push(done.finish()?);
        }
        Ok(())
    }

    /// Takes a line with a parameter. Gives what is to be logged about it, if it is not used.
    fn parameter(&mut self, text: &str) -> Value<Option<String>> {
        let assignment = assignment(text)?;
        let name = assignment.name.clone();
        let is_global = Config::is_global(&assignment.key);
        let taken = match (&mut self.current, is_global) {
            (Some(_), true) => return Ok(Some(format!("Global parameter {name} found in module section!"))),
            (None, true) => self.config.set(&assignment)?,
            (current, false) => {
                if current.is_none() {
                    self.config.note(&assignment)?;
                }
                current.as_mut().unwrap_or(&mut self.defaults).take(assignment)?
            }
        };
        // Words that searches for it in logs know.
        Ok((!taken).then(|| {
            format!("Unknown Parameter encountered: \"{name}\"; IGNORING unknown parameter \"{name}\"")
        }))
    }

    /// Sets what counts more than the global parameters of the file.
    fn override_globals(&mut self) -> Value<()> {
        for assignment in std::mem::take(&mut self.overrides) {
            let name = assignment.name.clone();
            let taken = match Config::is_global(&assignment.key) {
                true => self.config.set(&assignment)?,
                false => {
                    self.config.note(&assignment)?;
                    self.defaults.take(assignment)?
                }
            };
            if !taken {
                return Err(format!("Unknown parameter \"{name}\""));
            }
        }
        Ok(())
    }

    /// The files that a directive of the file `by` means: one, or those of a directory whose names end so, in their order.
    fn files(&mut self, by: &Path, name: &str, extension: &str) -> Value<Vec<PathBuf>> {
        let path = by.parent().unwrap_or(Path::new("")).join(name);
        if !path.is_dir() {
            return Ok(vec![path]);
        }
        self.saw(&path);
        let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let mut files = Vec::new();
        for entry in path.read_dir().map_err(cannot)? {
            let file = entry.map_err(cannot)?.path();
            if file.extension().is_some_and(|its| its == extension) {
                files.push(file);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// A line with a parameter, taken apart. Case and spaces in its name do not count.
fn assignment(text: &str) -> Value<Assignment> {
    let (name, value) = text.split_once('=').ok_or_else(|| "a '=' is missing".to_owned())?;
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    let key = name.replace(' ', "").to_lowercase();
    Ok(Assignment { key, name, value: value.trim().to_owned() })
}

/// Lines that say something, with their numbers; a backslash at the end goes on with the next one.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !goes_on && (line.is_empty() || line.starts_with(['#', ';'])) {
            continue;
        }
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, before)) => {
                before.push_str(part);
            }
            None => lines.push((at + 1, part.to_owned())),
        }
        goes_on = more;
    }
    lines
}
